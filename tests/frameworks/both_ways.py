"""One healthy training, run bare and under the probe: the same bits, and nothing to report."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import run_ranks, values

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run

Bare = Callable[[Callable[..., Any], int, str, int, float], list[Any]]
"""Job, ranks, an empty folder, a free port and seconds at most -> what each rank returned without the probe."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def train_rank(
    rank: int, world_size: int, job: Callable[..., Any], folder: str | None, port: int, place: str, deep: bool
) -> Any:
    """One rank. `place` is an empty folder of its own for what the training writes."""
    import multiprocessing

    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(world_size), GROUP_RANK="0", NODE_RANK="0",
        TORCHELASTIC_RUN_ID="test", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1",
    )  # fmt: skip
    os.chdir(place)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    if folder is not None:
        from distdoctor.probe.start import start

        start(folder, ProbeSettings(deep=frozenset({"gradients"} if deep else ())))
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    if not getattr(job, "makes_its_own_group", False):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        return job(rank, world_size)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_both(
    job: Callable[..., Any], ranks: int, tmp_path: Path, bare: Bare, *, deep: bool = False, timeout: float = 120
) -> tuple[Any, Any, list[Finding]]:
    """What the ranks returned without the probe and with it, and the findings that are more than notes."""
    bare_place, place, folder = (tmp_path / name for name in ("bare", "probed", "run"))
    for path in (bare_place, place, folder):
        path.mkdir()
    plain = bare(job, ranks, str(bare_place), free_port(), timeout)
    probed = values(
        run_ranks(train_rank, ranks, job, str(folder), free_port(), str(place), deep, timeout=timeout, join=False)
    )
    read = read_run(folder)
    assert not read.troubles, read.troubles
    recording = with_sources(Recording(Job(world_size=ranks), read.ranks))
    assert all(len(log.steps) for log in recording.ranks.values())
    findings = examine(recording, list(load().checks.values())).findings
    return plain, probed, [one for one in findings if one.severity != NOTE]
