"""Start the probe in this process, if this process is a rank, or becomes one."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distdoctor.probe import attempts, own_modules, wrappers
from distdoctor.probe.ancestry import as_launched, is_in_a_job_of_a_rank
from distdoctor.probe.checkpoints import around_torch as checkpoints
from distdoctor.probe.collectives import flight
from distdoctor.probe.collectives import groups as collectives
from distdoctor.probe.compile_guard import silent_about_ours
from distdoctor.probe.context import Function, Rank
from distdoctor.probe.gradients import stream as gradients
from distdoctor.probe.gradients.watched import WatchedModel
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.memory import stream as memory
from distdoctor.probe.progress import data_parallel, deprecated, environment, phases, store_keys, unused_search
from distdoctor.probe.progress import stream as progress
from distdoctor.probe.samples import stream as samples
from distdoctor.probe.writer import file_stem
from distdoctor.recording.trace.events import InitBegun, InitDone
from distdoctor.recording.trace.probe_settings import VARIABLE, ProbeSettings, read_settings

_AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun's agent holds the store at MASTER_PORT for its ranks
_OF_ONE_RANK = (
    "TORCHELASTIC_ERROR_FILE"  # a file of its own for each rank, which torchrun's agent names (torch 2.11-2.15)
)
_rank: Rank | None = None


def _asked_by_program(otherwise: Any) -> Callable[[Function], Function]:
    """A function that the training calls by name: trouble of ours gives it `otherwise`, and ends nothing but the recording."""

    def made(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                hand_on(error)
                if _rank is not None:
                    _rank.trouble(function.__name__, error)
                return otherwise

        return call  # type: ignore[return-value]

    return made


def start_as_told(path: str) -> None:
    """Start as the settings at `path` say, unless a rank has started this process for a job of its own.

    UnreadableRecording: they cannot be read.
    """
    folder, settings = read_settings(Path(path))
    if settings.attempt is not None and _is_rank() and is_in_a_job_of_a_rank(VARIABLE):
        os.environ.pop(VARIABLE, None)
        return
    start(str(folder), settings)


def start(folder: str, settings: ProbeSettings | None = None) -> None:
    """Lay the wrappers; open the trace at once where RANK tells who we are, else when init_process_group does.

    DataLoader workers and helpers of multiprocessing are not ranks, although they inherit RANK: a spawned or forked child becomes
    a rank only by joining a process group itself. So does a process whose rank is recorded by another one already.
    """
    global _rank
    if _rank is not None:
        return
    _rank = rank = Rank(folder, settings or ProbeSettings())
    os.register_at_fork(after_in_child=rank.forked)
    _await_group(rank)
    if _is_rank():
        _open(rank, int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))


@_asked_by_program(None)
def start_here(folder: str, *, joins: bool = False, settings: ProbeSettings | None = None) -> None:
    """Record this very process: as the rank of its process group, else as RANK says, or as the only one. The caller knows that it
    is nobody's helper.

    `joins`: it is going to join a process group, which shows who it is; the trace is opened there.
    """
    start(folder, settings)
    if joins or _rank is None or _rank.trace is not None or _rank.silent:
        return
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        _open(_rank, dist.get_rank(), dist.get_world_size(), joining=True)
        _rank.claim()
    else:
        _open(_rank, _number(None, "RANK", 0), _number(None, "WORLD_SIZE", 1))


@_asked_by_program(None)
def watch_models(models: Iterable[Any], ranks: tuple[int, ...] = ()) -> None:
    """From now on these models count as replicas on `ranks`, () for all ranks of the job. Nothing happens without a recording."""
    if _rank is not None:
        from distdoctor.probe import sites

        _rank.watched += [WatchedModel(weakref.ref(model), ranks, sites.user_site()) for model in models]
        _rank.on_watched()


@_asked_by_program(None)
def recorded_in() -> str | None:
    """The run folder that this process records into, None where it records nothing."""
    return _rank.folder if _rank is not None and _rank.trace is not None and not _rank.silent else None


@_asked_by_program(None)
def destination() -> str | None:
    """The run folder that this process records into, will once it has joined a process group, or did until trouble of ours; None
    where nothing is so."""
    return _rank.folder if _rank is not None else None


def _nothing(name: str) -> None: ...


@_asked_by_program((_nothing, _nothing))
def phase_marks() -> tuple[Callable[[str], None], Callable[[str], None]]:
    """(begin, end) of a long phase of this rank by its name; both do nothing where nothing is recorded."""
    if _rank is None:
        return _nothing, _nothing
    return functools.partial(_rank.phase_begins, named=True), _rank.phase_ends


@_asked_by_program(None)
def note_exception(error: BaseException) -> None:
    """Record the exception that ends this rank, for a caller that catches it and ends the process itself."""
    if _rank is not None:
        _rank.note_exception(error)


def _is_rank() -> bool:
    """A process with RANK set that is no child of multiprocessing."""
    child = multiprocessing.parent_process() is not None or getattr(
        multiprocessing.current_process(), "_inheriting", False
    )
    return os.environ.get("RANK", "").isdecimal() and not child and "--multiprocessing-fork" not in sys.argv


def _open(rank: Rank, number: int, world_size: int, *, joining: bool = False) -> None:
    """Create this rank's trace and start its streams. Nothing happens while another process records as this rank; where that one
    is the rank for sure, this process stays silent."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    local = int(local_rank) if local_rank.isdecimal() else number
    numbers = attempts.RankNumbers(number, world_size, local)
    trace = attempts.open_trace(rank.folder, numbers, rank.streams, rank.settings.attempt, joining=joining)
    if trace is None:
        rank.silent = joining  # a job of its own that a subprocess of the rank has made
        return
    rank.trace, attempt = trace, trace.attempt
    if trace.in_memory:
        print(
            f"distdoctor: no room for the recording of rank {number} in {rank.folder}; it is kept in memory "
            "and lost when the rank ends. Free 4 MiB per rank, or point --run-dir elsewhere.",
            file=sys.stderr,
        )
    if "environment" in rank.streams:
        path = os.path.join(rank.folder, file_stem(number, attempt) + ".json")
        rank.guarded(environment.write)(rank, trace, path)
        rank.guarded(own_modules.install)(rank)
        rank.guarded(deprecated.install)(rank)
    if "collectives" in rank.streams:
        rank.guarded(collectives.install)(rank, trace)
    wrappers.lay(sys.modules["torch.nn.modules.module"], "_has_any_global_hook", silent_about_ours(rank.guarded))
    times = None
    if "progress" in rank.streams:
        times = rank.guarded(progress.install)(rank)
        rank.guarded(store_keys.install)(rank)
        rank.guarded(phases.install)(rank)
        rank.guarded(progress.watch_groups)(rank)
    if "samples" in rank.streams:
        rank.guarded(samples.install)(rank)
    if "gradients" in rank.streams:
        rank.guarded(gradients.install)(rank)
    if "memory" in rank.streams:
        rank.guarded(memory.install)(rank)
    if "checkpoints" in rank.streams:
        rank.guarded(checkpoints.install)(rank)
    if times is not None:
        rank.guarded(unused_search.install)(rank)
        rank.guarded(data_parallel.install)(rank)
        rank.guarded(times.watch_optimizers)()
    rank.guarded(progress.watch_end)(rank)
    rank.guarded(progress.watch_threads)(rank)


def _await_group(rank: Rank) -> None:
    """Note init_process_group; for ranks that only it makes known (mp.spawn), open the trace there."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if rank.may_join:
            rank.wakes()
        if rank.silent or os.getpid() != rank.pid:
            return
        try:
            if rank.trace is None:
                number = kwargs.get("rank", args[4] if len(args) > 4 else -1)
                size = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
                number = int(os.environ.get("RANK", "-1")) if number is None or number < 0 else number
                size = int(os.environ.get("WORLD_SIZE", "-1")) if size is None or size < 0 else size
                if number < 0:
                    return
                _open(rank, number, size, joining=True)
            if rank.trace is not None:
                rank.claim()
                backend = kwargs.get("backend", args[0] if args else None)
                asked, size, place = _asked_for(args, kwargs)
                begun = InitBegun(str(backend or ""), place, size, asked, *_launchers_store(place))
                rank.trace.note(begun, site=_site(rank))
        except Exception as error:
            rank.trouble("init_process_group", error)

    def made(seconds: float) -> None:
        try:
            if rank.trace is None or rank.silent:
                return
            rank.trace.set_world(dist.get_world_size())
            rank.trace.note(InitDone(dist.get_world_size(), int(seconds * 1e9)))
            for told in rank.on_group:
                told()
            if "collectives" in rank.streams:
                flight.serve(rank, rank.trace)
        except Exception as error:
            rank.trouble("init_process_group", error)

    def make(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            begin(args, kwargs)
            since = time.monotonic()
            result = original(*args, **kwargs)
            made(time.monotonic() - since)
            return result

        return init_process_group

    wrappers.lay_everywhere((c10d, dist), "init_process_group", make)


def _asked_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, str]:
    """(rank, world size, where to meet) that a call of init_process_group asks for; -1, 0 and "" where that is not known."""
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    method, store = given.get("init_method"), given.get("store")
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    if store is not None:
        place = f"{getattr(store, 'host', '')}:{getattr(store, 'port', '')}" if hasattr(store, "port") else ""
    else:
        place = address if method in (None, "env://") else str(method)
    return _number(given.get("rank"), "RANK", -1), _number(given.get("world_size"), "WORLD_SIZE", 0), place


def _launchers_store(place: str) -> tuple[int, int]:
    """(port, ranks) of the launcher, where it holds the store for its ranks and this one looks for it at another port: there
    nobody holds one, for each of them only asks. 0 for the port where that is not so."""
    import torch.distributed.rendezvous as rendezvous

    hers = as_launched(_OF_ONE_RANK)
    port, ranks = hers.get("MASTER_PORT", ""), hers.get("WORLD_SIZE", "")
    launched = int(ranks) if ranks.isdecimal() else 0
    if os.environ.get(_AGENTS_STORE) != "True" or not port.isdecimal() or not place or place.endswith(f":{port}"):
        return 0, launched
    asked = place.rpartition(":")[2]
    is_url = place.startswith("tcp://")  # at such a one rank 0 holds the store, since torch 2.14
    only_asks = asked == os.environ.get("MASTER_PORT") or (is_url and not hasattr(rendezvous, "_agent_store_serves"))
    return int(port) if only_asks else 0, launched


def _number(given: Any, variable: str, unknown: int) -> int:
    """What was given, else what the environment says."""
    if isinstance(given, int) and given >= 0:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else unknown


def _site(rank: Rank) -> int:
    from distdoctor.probe import sites

    return rank.trace.texts.id(sites.user_site()) if rank.trace is not None else 0
