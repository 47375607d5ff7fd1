"""Reference trainings with a planted illness, recorded, in ranks of the fork server: `run --fire-drill` without its start."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from reference_training import request, train_rank

from distdoctor.offers import Drill
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run
from distdoctor.workloads.request import TrainingRequest
from jobs import RankResult, run_ranks
from jobs import hang as hang_jobs

EPOCHS = 2  # of trainings whose length the drill does not say


def planted(
    drill: Drill,
    strategy: str,
    *,
    timeout: float = 120,
    options: Mapping[str, Any] | None = None,
    plants: bool = True,
) -> Recording:
    """The recording of the job after its end. `options` of the training beside the drill's; without `plants` it is healthy."""
    asked = _asked(drill, strategy, options or {}, plants=plants)
    return recorded(asked, drill.needs_ranks, timeout=timeout, deep=frozenset({drill.deep} - {""}))


def watched(drill: Drill, strategy: str, until: Callable[[Recording], bool]) -> Recording:
    """The recording of the job as a watcher reads it while it runs, as soon as `until` says so; else after its end."""
    play = partial(_train, drill.needs_ranks, _asked(drill, strategy, {}).to_json())
    return hang_jobs.watched(play, ranks=drill.needs_ranks, until=until)


def _train(world_size: int, text: str, rank: int) -> None:
    train_rank(rank, world_size, text)


def _asked(drill: Drill, strategy: str, options: Mapping[str, Any], *, plants: bool = True) -> TrainingRequest:
    options = {"evaluate": False, **drill.arguments, **options}
    if not {"epochs", "steps"} & options.keys():
        options["epochs"] = EPOCHS
    return replace(request(strategy, **options), drills=(drill.plant,) if plants else ())


def recorded(
    asked: TrainingRequest, ranks: int, *, timeout: float = 120, deep: frozenset[str] = frozenset()
) -> Recording:
    """The recording of this training after its end."""
    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(
            _rank, ranks, asked.to_json(), folder, ProbeSettings(deep=deep), timeout=timeout, join=False
        )
        found = read_run(Path(folder))
        assert not found.troubles, found.troubles
        ends = {result.rank: _end(result) for result in results}
        return with_sources(Recording(Job(world_size=ranks, ends=ends), found.ranks))


def _end(result: RankResult) -> RankEnd:
    assert not result.timed_out, result
    code = result.exit_code or 0
    return RankEnd(code if code >= 0 else None, signal=max(0, -code))


def _rank(rank: int, world_size: int, text: str, folder: str, settings: ProbeSettings) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    from distdoctor.probe.start import start

    start(folder, settings)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    train_rank(rank, world_size, text)
