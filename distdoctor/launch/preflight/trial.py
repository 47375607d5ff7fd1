"""Empty ranks that join a group, reduce sums that are known before, and leave: does the machine carry the job at all?"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from distdoctor.launch.forked_ranks import ForkedRanks
from distdoctor.recording.preflight import TrialRank

SIZES = (4 << 10, 1 << 20, 16 << 20)  # bytes: latency, a bucket, several buckets
TIMES = 3
LEAVE_SECONDS = 2.0
LARGEST_OUTPUT = 16 << 20  # of what a rank prints


def run(
    ranks: int, first: int, world_size: int, backend: str, endpoint: str, seconds: float
) -> tuple[dict[int, TrialRank], str]:
    """rank -> what it found, of the ranks of this host, after at most so many seconds; and what they printed.

    `endpoint`: HOST:PORT where ranks of several hosts meet; "": all are here and meet in a folder, without a port.
    """
    import torch.distributed  # noqa: F401 - here, so that the forks have it

    with tempfile.TemporaryDirectory(prefix="distdoctor-preflight-") as folder:
        method = f"tcp://{endpoint}" if endpoint else f"file://{folder}/meeting"

        own = {"host": platform.node(), "versions": versions()}

        def rank(number: int) -> None:
            _print_into(Path(folder, f"{number}.out"))
            found = _joined(own, first + number, number, world_size, backend, method, seconds)
            Path(folder, f"{number}.json").write_text(json.dumps(found))

        forked = ForkedRanks(ranks, rank)
        try:
            deadline = time.monotonic() + seconds + LEAVE_SECONDS
            while not forked.wait(deadline - time.monotonic()) and time.monotonic() < deadline:
                pass
        finally:
            forked.close()
        found: dict[int, TrialRank] = {}
        for number in range(ranks):
            found |= _read(Path(folder, f"{number}.json"), first + number)
        return dict(sorted(found.items())), "".join(_text(Path(folder, f"{number}.out")) for number in range(ranks))


def _print_into(path: Path) -> None:
    """What libraries of this rank print goes into a file: NCCL prints what it finds, and our own output is to stay a report."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.close(file)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_OUTPUT).decode("utf-8", "replace")
    except OSError:
        return ""


def _read(path: Path, rank: int) -> dict[int, TrialRank]:
    """What one rank has learned: of all ranks where they met, else of itself."""
    try:
        every = json.loads(path.read_bytes())
    except (OSError, ValueError):
        every = [{"rank": rank, "host": platform.node(), "trouble": "it never came back from the group", "sums": {}}]
    for one in every:
        one["sums"] = {int(size): (seconds, exact) for size, (seconds, exact) in one["sums"].items()}
    return {one["rank"]: TrialRank(**one) for one in every}


def _joined(
    own: dict[str, Any], rank: int, local: int, world_size: int, backend: str, method: str, seconds: float
) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
    began = time.monotonic()
    try:
        dist.init_process_group(
            backend, init_method=method, rank=rank, world_size=world_size, timeout=timedelta(seconds=seconds)
        )
        joined = time.monotonic() - began
        sums = {size: _reduced(size, rank, world_size, device) for size in SIZES}
        dist.barrier()
        mine = {**own, "rank": rank, "joined_seconds": joined, "clock_ns": time.time_ns(), "sums": sums}
        every: list[dict[str, Any]] = [{}] * world_size
        dist.all_gather_object(every, mine)
        dist.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as trouble:
        return [{**own, "rank": rank, "sums": {}, "trouble": str(trouble).partition("\n")[0][:300]}]
    return every


def _reduced(size: int, rank: int, world_size: int, device: object) -> tuple[float, bool]:
    """(seconds of one all_reduce of so many bytes, whether every element is the exact sum)."""
    import torch
    import torch.distributed as dist

    wanted = float(sum(range(1, world_size + 1)))
    fastest, exact = float("inf"), True
    for _ in range(TIMES):
        tensor = torch.full((size // 4,), float(rank + 1), device=device)  # type: ignore[call-overload]
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        exact = exact and bool((tensor == wanted).all())
        fastest = min(fastest, time.perf_counter() - began)
    return fastest, exact


def versions() -> dict[str, str]:
    """What has to be the same on all hosts: versions, and the code that the ranks will import from the current folder."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.version.cuda and torch.cuda.is_available() else ()  # type: ignore[no-untyped-call]
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "distdoctor": metadata.version("distdoctor"),
    }
    if nccl:
        found["nccl"] = ".".join(map(str, nccl))
    return {**found, "code here": _digest(Path.cwd())}


def _digest(folder: Path) -> str:
    """Of the Python files in a folder, by name and content; "none" where there are none."""
    digest = hashlib.blake2b(digest_size=6)
    files = sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".py") and entry.is_file())
    for path in files:
        digest.update(os.path.basename(path).encode())
        digest.update(Path(path).read_bytes())
    return digest.hexdigest() if files else "none"
