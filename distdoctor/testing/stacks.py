"""Jobs that were looked at from outside, made by hand: stacks of ranks as hang-dump finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.stacks import Frame, ProcessStacks, RankStacks, Stacks, ThreadStack

TORCH = "/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOADER = f"{TORCH}/utils/data/dataloader.py"
WORKER = f"{TORCH}/utils/data/_utils/worker.py"
FETCH = f"{TORCH}/utils/data/_utils/fetch.py"


def frame(words: str, **arguments: str) -> Frame:
    """`train.py:41 train_step` as a frame; relative paths lie below /job."""
    place, _, function = words.partition(" ")
    path, _, line = place.rpartition(":")
    return Frame(function or "main", path if path.startswith(("/", "<")) else f"/job/{path}", int(line), arguments)


def torch_frame(function: str, path: str = C10D, **arguments: str) -> Frame:
    """One of torch's own functions, by default one of c10d's."""
    return Frame(function, path, 4181, arguments)


def process(*frames: Frame, pid: int, still: float | None = 20.0, **more: Any) -> ProcessStacks:
    """A process whose main thread is in `frames`, innermost first, and has been still for so long."""
    threads = (ThreadStack(pid, frames, "MainThread"),) if frames else ()
    return ProcessStacks(pid, more.pop("command", "python train.py"), threads=threads, still_seconds=still, **more)


def rank(
    number: int,
    *frames: Frame,
    workers: tuple[ProcessStacks, ...] = (),
    children: tuple[ProcessStacks, ...] = (),
    **more: Any,
) -> RankStacks:
    """A rank whose main thread is in `frames`; `more` as for `process`. Without frames nobody could read it."""
    return RankStacks(number, process(*frames, pid=1000 + number, **more), workers, children)


def in_collective(
    number: int, call: str = "all_reduce", site: str = "train.py:41 train_step", **more: Any
) -> RankStacks:
    """A rank inside a collective. `arguments` are those of torch's function (`src="0"`)."""
    arguments: Mapping[str, str] = more.pop("arguments", {})
    return rank(number, torch_frame(call, **arguments), frame(site), frame("train.py:90 main"), **more)


def gone(number: int) -> RankStacks:
    """A rank that should be on this host and has no process."""
    return RankStacks(number, None)


def looked_at(
    *ranks: RankStacks, job: Job | None = None, sources: Mapping[str, str] | None = None, **more: Any
) -> Recording:
    """The recording of a job of which only the stacks are known. `sources` are texts below /job; `more` goes to `Stacks`."""
    texts = {f"/job/{name}": text for name, text in (sources or {}).items()}
    world = len(ranks) + len(more.get("elsewhere", ()))
    about = replace(job or Job(), running=True, world_size=world)
    stacks = Stacks({one.rank: one for one in ranks}, observed_seconds=0.5, **more)
    return Recording(about, {}, frozenset(), sources=texts, stacks=stacks)
