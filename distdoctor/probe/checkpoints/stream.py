"""The stream of checkpoints: every save and load with its path and times, and what load_state_dict found.

Nothing of a checkpoint is kept: paths, counts and names of a few keys are read while the call is at work. Each line of the
recording's events is used again for later saves, so that a job that saves often does not push out what others noted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from distdoctor.probe import sites
from distdoctor.probe.checkpoints.live_state import MOST_BESIDE
from distdoctor.probe.checkpoints.other_files import OtherFiles
from distdoctor.probe.checkpoints.paths import absolute
from distdoctor.probe.checkpoints.pointers import pointers_beside
from distdoctor.probe.checkpoints.snapshots import Snapshots
from distdoctor.probe.checkpoints.tensors import PREFIXES, count_names, tensors_in
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.tensors.digests import bytes_of
from distdoctor.probe.writer import FAILED, TraceWriter
from distdoctor.recording.trace.events import (
    Loading,
    Pointer,
    Renamed,
    SavedAside,
    SavedBeside,
    Saving,
    StateLoaded,
    TraceEvent,
    Unfinished,
    Untied,
    place_of,
)

KEPT = 192  # events of this stream; the oldest give way
FIRST = 32  # of them, those that stay
DESCRIBED = 32  # saves of which the names of what they hold are kept
FOLDERS = 8  # in which pointers are looked for at the end

SMALLEST = 8  # times smaller than what was serialized: a file that holds no more than that holds something else
_IDLE = ("threading.py", "queue.py", "selectors.py", "connection.py")  # where a thread sits that has nothing to do
_OF_SAVES = ("done_ns",)  # lies at the same place in `Loading`
Noted = tuple[int, int] | None


@dataclass
class Serialized:
    """What one thread has put into memory of what an optimizer changes. `first`: the place of the first tensor among all of them;
    `step` and `done_step`: when that began, and when the last one was done."""

    first: int
    step: int
    live: int = 0
    nbytes: int = 0
    done_step: int = 0


class CheckpointStream(ProbeStream):
    """Writes saves and loads down. What torch calls is guarded: trouble ends this stream, and nothing else."""

    name = "checkpoints"

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        super().__init__(rank, trace, deep=False)
        self._seqs: list[int] = []
        self._noted = self._described = 0
        self._saved: dict[str, None] = {}  # paths, for renames and pointers; in the order of the saves
        self._savers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # some keep what they save
        self._asynchronous: set[str] = set()
        self._inside = threading.local()
        self.snapshots = Snapshots(rank, trace, self.guarded)
        self._aside: dict[tuple[int, int], tuple[SavedAside, str]] = {}  # saves of other threads that are under way
        self.other_files = OtherFiles(rank, trace, self.guarded)
        # Threads that were given what an optimizer changes: how many tensors, the place of the first, and the step then.
        self._given: weakref.WeakKeyDictionary[threading.Thread, tuple[int, int, int]] = weakref.WeakKeyDictionary()
        # Of threads that serialize such tensors into memory, for a file of a format of their own.
        self._serialized: weakref.WeakKeyDictionary[threading.Thread, Serialized] = weakref.WeakKeyDictionary()

    # -- writing -------------------------------------------------------------------------------------------------------------

    def note(self, event: TraceEvent, site: str = "") -> tuple[int, int]:
        """The number of the record, and of the event that lies in it."""
        text = self.trace.texts.id(site)
        self._noted += 1
        if self._noted <= KEPT:
            self._seqs.append(self.trace.note(event, site=text))
            return self._seqs[-1], self._noted
        seq = self._seqs[FIRST + (self._noted - KEPT - 1) % (KEPT - FIRST)]
        self.trace.note_again(seq, event, site=text)
        return seq, self._noted

    def patch(self, noted: Noted, field: str, value: int) -> None:
        """Set a number of a save or load, unless its record was given to a later one."""
        if noted and self._noted - noted[1] < KEPT - FIRST:
            self.trace.events.patch(noted[0], place_of(Saving if field in _OF_SAVES else Loading, field), value)

    # -- saving --------------------------------------------------------------------------------------------------------------

    def save_begins(self, state: Any, file: Any, by: str) -> Noted:
        """A call that saves begins; None for a part of one that is noted already."""
        return None if self._is_inside() else self._save_begins(state, absolute(file), by)

    def _save_begins(self, state: Any, path: str, by: str) -> Noted:
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            if self.snapshots.looks_trained(state):
                self._savers.add(thread)
            if not path and by == "torch.save":
                self._serializes(thread, state)
        self.snapshots.saving(state, path)
        parts = self.snapshots.parts_in(state) if by == "torch.save" and path else 0
        noted = self._save_begun(path, by, *count_names(state), parts)
        if noted:
            self._note_beside(state, path)
        if noted and thread in self._savers and by == "torch.save":
            self._begins_aside(noted, state, path)
        return noted

    def _live_in(self, state: Any) -> tuple[int, int]:
        """How many tensors of a state an optimizer changes, and the place of the first."""
        try:
            return self.snapshots.trained_in(state)
        except (RuntimeError, LookupError) as error:  # the main thread is at work on what it trains
            hand_on(error)
            return 0, 0

    def _note_beside(self, state: Any, path: str) -> None:
        """Which tensors of it no optimizer changes."""
        if self._described >= DESCRIBED:
            return
        try:
            self._describe(path, self.snapshots.names_beside(state))
        except (RuntimeError, LookupError) as error:  # as above
            hand_on(error)

    def _describe(self, path: str, names: tuple[str, ...] | None) -> None:
        """None: many."""
        if self._described < DESCRIBED:
            self._described += 1
            self.trace.note(SavedBeside(path, names or (), many=names is None))

    def _serializes(self, thread: threading.Thread, state: Any) -> None:
        live, first = self._live_in(state)
        if not live:
            return
        known = self._serialized.get(thread)
        if known is None or first == known.first:  # that one again: the next checkpoint
            known = self._serialized[thread] = Serialized(first, self.rank.step)
        known.live += live
        known.nbytes += (
            bytes_of(state) if isinstance(state, torch.Tensor) else sum(bytes_of(one) for _, one in tensors_in(state))
        )

    def _begins_aside(self, noted: tuple[int, int], state: Any, path: str) -> None:
        """Remember what the optimizer may change while this thread saves it."""
        live, first = self._live_in(state)
        if live:
            thread, step = threading.get_native_id(), self.rank.step
            self._aside[noted] = SavedAside(path, thread, live, first, step), sites.user_site()

    def _save_begun(self, path: str, by: str, tensors: int, wrapped: int, parts: int = 0) -> Noted:
        if not path:
            return None
        self._saved.pop(path, None)
        self._saved[path] = None
        event = Saving(path, by, self.rank.step, 0, tensors, wrapped, parts)
        return self.note(event, sites.user_site())

    def file_begins(self, tensors: Mapping[str, Any], file: Any) -> Noted:
        """safetensors writes these names; of what is in them only addresses are left."""
        path = absolute(file)
        if not self.snapshots.are_of_the_model(tensors):
            return None
        self.snapshots.saving(None, path)
        noted = self._save_begun(path, "safetensors", len(tensors), sum(name.startswith(PREFIXES) for name in tensors))
        if noted:
            self._describe(path, tuple(tensors) if len(tensors) <= MOST_BESIDE else None)
        return noted

    def save_ended(self, noted: Noted, failed: bool) -> None:
        self.patch(noted, "done_ns", _done(failed))
        serialized = self._serialized.get(threading.current_thread()) if noted is None and self._serialized else None
        if serialized is not None:
            serialized.done_step = self.rank.step
        aside = self._aside.pop(noted, None) if noted else None
        if aside is not None and not failed:
            event, site = aside
            self.note(replace(event, done_step=self.rank.step), site)

    def distributed_save_begins(self, state: Any, storage: Any) -> Noted:
        """None where it is the work of an asynchronous save of this folder, noted already."""
        folder = _folder_of(storage)
        return None if folder in self._asynchronous else self._save_begins(state, folder, "dcp.save")

    def async_save_begins(self, folder: Any, storage: Any) -> tuple[Noted, str]:
        path = absolute(folder) or _folder_of(storage)
        self._asynchronous.add(path)
        return self._save_begins(None, path, "dcp.async_save"), path

    def async_save_ended(self, noted: Noted, folder: str, future: Any) -> None:
        self._asynchronous.discard(folder)
        self.save_ended(noted, future.exception() is not None)

    def thread_begins(self, thread: threading.Thread) -> None:
        """A thread is started: it may be given what is to be saved."""
        given = (getattr(thread, "_args", ()), getattr(thread, "_kwargs", {}))
        live, first = self.snapshots.trained_in(given) if any(tensors_in(given)) else (0, 0)
        if live:
            self._given[thread] = live, first, self.rank.step

    def renames(self, source: Any, target: Any, frame: FrameType) -> int:
        """A file is about to get another name: the digest of what it holds, where it is no checkpoint."""
        path, to = absolute(source), absolute(target)
        return self.other_files.content_of(path, to, frame) if path and to and not self._saved_as(path) else 0

    def renamed(self, source: Any, target: Any, frame: FrameType, content: int) -> None:
        path, to = absolute(source), absolute(target)
        if not path or not to:
            return
        if not self._saved_as(path):
            self.other_files.renamed(to, frame, content)
            self._wrote_aside(to, frame)
            return
        self._saved[to] = None
        self.note(Renamed(path, to), sites.user_site())
        self.snapshots.renamed(path, to)

    def _saved_as(self, path: str) -> bool:
        return any(one == path or one.startswith(path + os.sep) for one in self._saved)

    def _wrote_aside(self, path: str, inner: FrameType) -> None:
        """A thread gives a file its name, and holds tensors that an optimizer changes, which it was given when it began."""
        thread = threading.current_thread()
        serialized = self._serialized.pop(thread, None)
        frame = sites.user_frame(inner)  # a method of a path may stand between
        if frame is None:
            return
        if serialized is not None and _size(path) * SMALLEST >= serialized.nbytes:
            first, last = serialized.step, serialized.done_step
            event = SavedAside(path, threading.get_native_id(), serialized.live, serialized.first, first, last)
            self.note(event, sites.site_of(frame))
            return
        live, first, step = self._given.get(thread, (0, 0, 0))
        if live < 2:
            return
        held = [one for one in frame.f_locals.values() if isinstance(one, (dict, list, tuple))]
        counts = [(self.snapshots.trained_in(one)[0], sum(1 for _ in tensors_in(one))) for one in held]
        if any(own >= live for own, _ in counts) and not any(own == 0 and of_all >= live for own, of_all in counts):
            event = SavedAside(path, threading.get_native_id(), live, first, step, self.rank.step)
            self.note(event, sites.site_of(frame))

    # -- loading -------------------------------------------------------------------------------------------------------------

    def load_begins(self, file: Any, by: str, placed: bool) -> Noted:
        """A call that loads begins; None for a part of one that is noted already."""
        return None if self._is_inside() else self._load_begins(absolute(file), by, placed)

    def distributed_load_begins(self, storage: Any) -> Noted:
        return self._load_begins(_folder_of(storage), "dcp.load", True)

    def _load_begins(self, path: str, by: str, placed: bool) -> Noted:
        if not path:
            return None
        self.snapshots.reads()
        event = Loading(path, by, self.rank.step, 0, placed)
        return self.note(event, sites.user_site())

    def load_ended(self, noted: Noted, result: Any, failed: bool) -> None:
        if noted and not failed and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            own = torch.cuda.current_device()
            foreign = sum(bytes_of(one) for _, one in tensors_in(result) if one.is_cuda and one.get_device() != own)
            self.patch(noted, "foreign", foreign)
        self.patch(noted, "done_ns", _done(failed))

    def state_loaded(self, what: str, owner: Any, state: Any, found: Any, strict: bool) -> None:
        if self._is_inside():
            return
        missing, unexpected = (list(getattr(found, name, ())) for name in ("missing_keys", "unexpected_keys"))
        given = len(state) if isinstance(state, Mapping) else 0
        names = (type(owner).__name__, *missing[:1], *unexpected[:1])
        own = given - len(unexpected) + len(missing)
        event = StateLoaded(what, names, len(missing), len(unexpected), own, strict, self.rank.step)
        self.note(event, sites.user_site())

    def tied(self, owner: Any) -> list[list[str]]:
        """The names of a module's parameters that are one and the same."""
        found: dict[int, list[str]] = {}
        for name, parameter in owner.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(name)
        return [names for names in found.values() if len(names) > 1]

    def untied(self, owner: Any, before: Sequence[Sequence[str]] | None) -> None:
        """Note what `tied` had found before a state was loaded, where it is not one and the same any more."""
        own = {name: id(one) for name, one in owner.named_parameters(remove_duplicate=False)} if before else {}
        for names in before or ():
            if len({own.get(name) for name in names}) > 1:
                self.note(Untied(type(owner).__name__, tuple(names[:4])), sites.user_site())

    # -- the end -------------------------------------------------------------------------------------------------------------

    def exiting(self) -> None:
        frames = sys._current_frames()
        for thread in self._savers:
            frame = frames.get(thread.ident or 0)
            if frame is not None and not frame.f_code.co_filename.endswith(_IDLE):
                user = sites.user_frame(frame)
                site = sites.site_of(user) if user is not None else ""
                self.note(Unfinished(thread.name, thread.daemon, self.rank.step), site)
        frames.clear()
        for one in pointers_beside(self._saved, FOLDERS):
            self.note(Pointer(one.path, (one.target, *one.beside), one.there))

    # -- around torch --------------------------------------------------------------------------------------------------------

    def outermost(self, call: Callable[[], Any]) -> Any:
        """Run a call of which inner ones of the same kind are not noted."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            return call()
        finally:
            self._inside.depth -= 1

    def _is_inside(self) -> bool:
        return bool(getattr(self._inside, "depth", 0))


def _folder_of(storage: Any) -> str:
    return absolute(getattr(storage, "path", None))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:  # somebody was quicker
        hand_on(error)
        return 0


def _done(failed: bool) -> int:
    return FAILED if failed else time.monotonic_ns()
