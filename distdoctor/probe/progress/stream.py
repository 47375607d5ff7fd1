"""The stream of progress: optimizer steps, how the process group came and went, how the process ended."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, TextIO

from distdoctor.probe import optimizer_steps, sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.error_words import in_plain_words, in_words
from distdoctor.probe.interruptions import suppressed
from distdoctor.probe.progress import garbage
from distdoctor.probe.progress.core_share import CoreShares
from distdoctor.probe.progress.device_waits import DeviceWaits
from distdoctor.probe.progress.step_counts import StepCounts
from distdoctor.probe.progress.step_times import StepTimer
from distdoctor.probe.writer import FAILED, TraceWriter
from distdoctor.recording.trace.events import (
    Exiting,
    GroupDestroyed,
    NewGroupBegun,
    ThreadFailed,
    UncaughtException,
    place_of,
)
from distdoctor.recording.trace.layout import Claim
from distdoctor.recording.trace.redaction import redacted

_MOST_THREADS = 16  # that are told to have failed
_MOST_ERRORS = 4  # of those that one exception was raised from, the last ones first


def install(rank: Rank) -> StepTimer | None:
    """Count optimizer steps from now on, whichever optimizer makes them, and where their time goes."""
    if rank.trace is None:
        return None
    steps = StepCounts(rank)
    steps.install()
    times = StepTimer(rank, rank.trace.rings["times"])
    times.install()
    waits, shares = DeviceWaits(rank), CoreShares(rank)
    shares.install()
    collector = garbage.install(rank)

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        times.stepped()
        # Several optimizers (GAN) step in turn: the one that steps most often counts the steps.
        count = steps.stepped(optimizer)
        if count > rank.step and rank.trace is not None:
            rank.step = count
            if count == 1:
                rank.claim()
            now = time.monotonic_ns()
            site = rank.trace.texts.id(sites.user_site())
            rank.trace.steps.write(at_ns=now, step=count, epoch=rank.epoch, micro_steps=times.backwards, site=site)
            collector.settle()
            times.write(now, count)
            waits.stepped(count)
            shares.stepped(count)
            collector.stepped()

    optimizer_steps.after_each(rank.guarded, stepped)
    return times


def watch_groups(rank: Rank) -> None:
    """Note when groups are made and destroyed: a rank that sits in `new_group` is seen to sit there."""
    import torch.distributed as dist
    from torch.distributed import device_mesh
    from torch.distributed import distributed_c10d as c10d

    @rank.guarded
    def begun(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TraceWriter, int] | None:
        if rank.trace is None:
            return None
        words = kwargs.get("ranks", args[0] if args else None)
        members = tuple(words) if isinstance(words, (list, tuple, range)) else ()
        members_only = kwargs.get("use_local_synchronization", args[4] if len(args) > 4 else False)
        making = NewGroupBegun(members, bool(members_only))
        return rank.trace, rank.trace.note(making, site=rank.trace.texts.id(sites.user_site()))

    @rank.guarded
    def done(noted: tuple[TraceWriter, int], at_ns: int) -> None:
        noted[0].events.patch(noted[1], place_of(NewGroupBegun, "done_ns"), at_ns)

    def making(original: Any) -> Any:
        def new_group(*args: Any, **kwargs: Any) -> Any:
            noted, at_ns = begun(args, kwargs), FAILED
            try:
                made = original(*args, **kwargs)
                at_ns = time.monotonic_ns()
                return made
            finally:
                if noted is not None:
                    done(noted, at_ns)

        return new_group

    @rank.guarded
    def destroyed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if rank.trace is not None:
            group = kwargs.get("group", args[0] if args else None)
            everything = group is None or group is c10d.GroupMember.WORLD
            name = "" if everything or group is None else c10d._world.pg_names.get(group, "")
            rank.trace.note(GroupDestroyed(name), site=rank.trace.texts.id(sites.user_site()))

    def destroying(original: Any) -> Any:
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            destroyed(args, kwargs)
            return original(*args, **kwargs)

        return destroy_process_group

    wrappers.lay_everywhere((c10d, dist, device_mesh), "new_group", making)
    wrappers.lay_everywhere((c10d, dist), "destroy_process_group", destroying)


def watch_end(rank: Rank) -> None:
    """Record the uncaught exception, if that is how the process ends, and that the interpreter went down in order."""
    previous = sys.excepthook
    noted: list[BaseException] = []
    child_raised = False

    @rank.guarded
    def note(error: BaseException) -> None:
        if rank.trace is None or rank.trace.gave_way or error in noted:
            return
        noted.append(error)
        path = os.path.join(rank.folder, f"rank-{rank.trace.rank:05d}.a{rank.trace.attempt}.traceback.txt")
        first = sites.raised_at(error)
        with suppressed(OSError), _private(path) as file:
            file.writelines(map(redacted, traceback.format_exception(error)))
        errors = tuple(map(in_words, _chain(error)))
        trace = rank.trace
        trace.note(UncaughtException(errors, os.path.basename(path)), site=trace.texts.id(first))
        for listener in rank.on_exception:
            listener(error)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note(error)
        noted.clear()  # keep no traceback, and so no tensor, alive
        previous(kind, error, trace)

    def leave(failed: bool) -> None:
        if rank.trace is not None and not rank.trace.gave_way and os.getpid() == rank.pid:
            for told in rank.at_end:
                told()
            rank.trace.note(Exiting(failed))
            if not failed and not rank.trace.claimed:
                rank.trace.claim(Claim.LEFT)

    @rank.guarded
    def at_exit() -> None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        # A library that replaced sys.excepthook after us has shown the exception; the interpreter remembers it.
        if isinstance(error, BaseException) and sys.excepthook is not excepthook:
            note(error)
        leave(error is not None or child_raised)

    @rank.guarded
    def at_childs_end() -> None:
        nonlocal child_raised
        error = raised_by_child(sys.exc_info()[1])
        if error is not None:
            child_raised = True
            note(error)
            noted.clear()
        if rank.was_forked:
            leave(child_raised)

    rank.note_exception = note
    sys.excepthook = excepthook
    atexit.register(at_exit)
    if multiprocessing.parent_process() is not None:
        # multiprocessing shows what its child has raised itself, and lets a forked one go without the interpreter's end
        Finalize(None, at_childs_end, exitpriority=-1)


def watch_threads(rank: Rank) -> None:
    """Record the exceptions that end threads, where the interpreter shows them, and those that a future keeps for who asks it."""
    failed = itertools.count()

    @rank.guarded
    def note(error: BaseException | None, thread: threading.Thread | None, *, kept: bool = False) -> None:
        trace = rank.trace
        if trace is None or trace.gave_way or error is None or isinstance(error, SystemExit):
            return
        if next(failed) < _MOST_THREADS:
            words, name = in_plain_words(error) if kept else in_words(error), thread.name if thread is not None else ""
            trace.note(ThreadFailed(words, name, kept), site=trace.texts.id(sites.raised_at(error)))

    def showing(original: Any) -> Any:
        def excepthook(args: threading.ExceptHookArgs) -> Any:
            note(args.exc_value, args.thread)
            return original(args)

        return excepthook

    def keeping(original: Any) -> Any:
        def set_exception(future: Any, exception: BaseException | None) -> Any:
            note(exception, threading.current_thread(), kept=True)
            return original(future, exception)

        return set_exception

    wrappers.lay(threading, "excepthook", showing)
    wrappers.lay(Future, "set_exception", keeping)


def raised_by_child(error: BaseException | None) -> BaseException | None:
    """What ends a child of multiprocessing. That of torch.multiprocessing.spawn writes the exception down, and exits with 1."""
    if isinstance(error, SystemExit) and error.__context__ is not None and error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        is_torchs = last.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.spawn"
        return error.__context__ if is_torchs else None
    return None if isinstance(error, SystemExit) else error


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and those that it was raised from, or while they were being handled; also where `from None` hides them."""
    chain = [error]
    while len(chain) < _MOST_ERRORS:
        before = chain[-1].__cause__ or chain[-1].__context__
        if before is None or before in chain:
            break
        chain.append(before)
    return chain


def _private(path: str) -> TextIO:
    """A new file for its owner alone, whatever the umask; a link that lies there is not followed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return open(fd, "w", encoding="utf-8", errors="backslashreplace")
