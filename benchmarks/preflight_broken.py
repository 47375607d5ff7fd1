"""What preflight says of machines that are really broken: one row for each thing, the way it was broken, and what is told.

    python benchmarks/preflight_broken.py            (root: name spaces and mounts)

The libraries that break a clock, a network card or NCCL's output are those of tests/launch/test_preflight.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))

import test_preflight as broken

LAUNCH = Path(broken.__file__).parent
SMALL_SHM = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm; exec "$@"', "_"]
NO_IPV6 = ["unshare", "--net", "--mount", "bash", "-c", broken.WITHOUT_IPV6, "_"]


@dataclass(frozen=True)
class Broken:
    """One thing: how a command line starts, its options and variables; `source` is preloaded, `second` starts the other host."""

    name: str
    before: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    source: str = ""
    second: Callable[[Path], list[str]] | None = None


def _clock(folder: Path) -> list[str]:
    library = folder / "clock.so"
    source = LAUNCH / "clock_set_back.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return ["env", f"LD_PRELOAD={library}"]


THINGS = [
    Broken("nothing"),
    Broken("a name that nobody knows", options=["--endpoint", "nobody.invalid:29500"]),
    Broken("a port that somebody holds", options=["--endpoint", "127.0.0.1:{port}"]),
    Broken("no IPv6, and an endpoint that has nothing else", before=NO_IPV6, options=["--endpoint", "trainer-0:29500"]),
    Broken("no IPv6, and localhost", before=NO_IPV6, options=["--endpoint", "localhost:29500"]),
    Broken("64 MiB of /dev/shm and 8 workers", before=SMALL_SHM, options=["--workers", "4"]),
    Broken("OMP_NUM_THREADS=4096", variables={"OMP_NUM_THREADS": "4096"}),
    Broken("nccl, and no GPU", options=["--backend", "nccl"]),
    Broken("a network card that changes bits", source=broken.BROKEN_READS),
    Broken("NCCL prints that a copy between GPUs failed", source=broken.PRINTS_DIAGNOSTICS),
    Broken("another torch on the second host", second=broken.other_torch),
    Broken("the second host's clock is an hour behind", second=_clock),
]


def told(thing: Broken, folder: Path) -> str:
    """The findings of the first host, "nothing" without any."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        options = [word.format(port=port) for word in thing.options]
        if thing.second is None:
            return _findings(_started(thing.before, options, folder, thing))
    hosts = ["--nnodes", "2", "--endpoint", f"127.0.0.1:{port}", "--timeout", "60"]
    other = folder / "other"
    other.mkdir()
    (other / "set-back").touch()
    second = _started(thing.second(folder), [*hosts, "--node-rank", "1"], other, thing)
    first = _findings(_started([], [*hosts, "--node-rank", "0"], folder, thing))
    second.communicate(timeout=90)
    return first


def _started(before: list[str], options: list[str], folder: Path, thing: Broken) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **thing.variables}
    if thing.source:
        (folder / "broken.c").write_text(thing.source)
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", "broken.so", "broken.c", "-ldl"]
        subprocess.run(build, cwd=folder, check=True, capture_output=True)
        environment["LD_PRELOAD"] = str(folder / "broken.so")
    command = [*before, *broken.COMMAND, "--output-format", "json", *options]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _findings(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=90)
    if not out:  # its reason is on standard error
        return f"exit {process.returncode}: no report"
    found = json.loads(out)["findings"]
    said = "; ".join(f"{one['code']} {one['confidence']}: {one['title']}" for one in found)
    return f"exit {process.returncode}: {said or 'nothing'}"


def main() -> None:
    print("| broken | told |\n|---|---|")
    for thing in THINGS:
        with tempfile.TemporaryDirectory(prefix="preflight-broken-") as folder:
            print(f"| {thing.name} | {told(thing, Path(folder)).replace('|', '/')} |", flush=True)


if __name__ == "__main__":
    main()
