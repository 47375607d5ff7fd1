"""The stream of progress: optimizer steps, how the process group came and went, how the process ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
import weakref
from types import TracebackType
from typing import Any

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.step_times import StepTimes
from distdoctor.recording.layout import EventKind, site_text


def install(rank: Rank) -> StepTimes | None:
    """Count optimizer steps from now on, whichever optimizer makes them, and where their time goes."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    if rank.tape is None:
        return None
    steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
    times = StepTimes(rank, rank.tape.rings["times"])
    times.install()

    @rank.guarded
    def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        times.stepped()
        # Several optimizers (GAN) step in turn: the one that steps most often counts the steps.
        steps[optimizer] = count = steps.get(optimizer, 0) + 1
        if count > rank.step and rank.tape is not None:
            rank.step = count
            now = time.monotonic_ns()
            rank.tape.steps.write(now, count, rank.epoch, times.backwards, rank.tape.texts.id(sites.user_site()))
            times.write(now, count)

    register_optimizer_step_post_hook(stepped)
    return times


def watch_groups(rank: Rank) -> None:
    """Note when groups are made and destroyed: a rank that sits in `new_group` is seen to sit there."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    def noting(begun: EventKind, name: str) -> None:
        @rank.guarded
        def note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if rank.tape is not None:
                words = kwargs.get("ranks", args[0] if args else None)
                text = ",".join(map(str, words)) if isinstance(words, (list, tuple, range)) else ""
                rank.tape.event(begun, text, site=rank.tape.texts.id(sites.user_site()))

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                note(args, kwargs)
                return original(*args, **kwargs)

            return call

        wrappers.lay_everywhere((c10d, dist), name, make)

    noting(EventKind.NEW_GROUP_BEGUN, "new_group")
    noting(EventKind.GROUP_DESTROYED, "destroy_process_group")


def watch_end(rank: Rank) -> None:
    """Record the uncaught exception, if that is how the process ends, and that the interpreter went down in order."""
    previous = sys.excepthook
    noted: list[BaseException] = []

    @rank.guarded
    def note(error: BaseException) -> None:
        if rank.tape is None or error in noted:
            return
        noted.append(error)
        path = os.path.join(rank.folder, f"rank-{rank.tape.rank:05d}.a{rank.tape.attempt}.traceback.txt")
        first = _innermost_user_site(error)
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
        words = f"{type(error).__name__}: {error}"[:2000]
        tape = rank.tape
        tape.event(EventKind.EXCEPTION, words, site=tape.texts.id(first), more=os.path.basename(path))

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note(error)
        noted.clear()  # keep no traceback, and so no tensor, alive
        previous(kind, error, trace)

    @rank.guarded
    def at_exit() -> None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        # A library that replaced sys.excepthook after us has shown the exception; the interpreter remembers it.
        if isinstance(error, BaseException) and sys.excepthook is not excepthook:
            note(error)
        if rank.tape is not None and os.getpid() == rank.pid:
            rank.tape.event(EventKind.EXITING, a=int(error is not None))

    rank.note_exception = note
    sys.excepthook = excepthook
    atexit.register(at_exit)


def _innermost_user_site(error: BaseException) -> str:
    """The user's line at which the exception passed last, "" when it never passed one."""
    site, trace = "", error.__traceback__
    while trace is not None:
        if sites.is_users(trace.tb_frame):
            code = trace.tb_frame.f_code
            site = site_text(os.path.abspath(code.co_filename), trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return site
