"""What becomes of the handles that asynchronous collectives give: waited for, looked at, or dropped as they are.

Only handles that the user's own line gets back are followed; what a library does with its own is its business. The handle is
held by a weak reference, so it dies when the user lets go of it, and that is what is noted. Programs without handles do not pay
for the wrappers: a source file of the user's that mentions handles brings them, else the first handle, which is not followed.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import CALL, CallFlag

# Methods of a process group through which torch's own Python functions issue an operation and get the handle back. No `send`: its
# result is on the other rank; no `barrier`: it has none.
ISSUING = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall", "alltoall_base", "gather", "scatter", "recv", "recv_anysource",
)  # fmt: skip
LOOKING = (
    "is_completed",
    "get_future",
    "get_future_result",
    "synchronize",
    "result",
    "block_current_stream",
    "exception",
)
_WAITED = CALL.offsets["waited_ns"]
_FLAGS = CALL.offsets["flags"]
_DROPPED = int(CallFlag.DROPPED)
_LONGEST_SOURCE = 1 << 20  # bytes
_LOOKS = 3  # at the imported modules: when the first groups are made
_FILES = 200  # read at most: where they lie on a slow disk, a rank must not wait for a whole repository
_MOST = 10_000  # handles followed at a time; a program that keeps more of them alive is not followed any further


def _users_files() -> Iterator[str]:
    """The source files of the user's modules that are imported, the main one among them."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")  # not getattr: a lazy module would be imported by it
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        if sites.belongs_to_user(path):
            yield path


def _mentions_handles(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            source = file.read(_LONGEST_SOURCE)
    except OSError as error:
        hand_on(error)
        return False
    return any(word in source for word in (b"async_op", b"irecv"))


class Handles:
    """The handles that are on their way: who is asked for is waited for, who dies unasked is dropped."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._open: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._laid = False
        self._looks = 0
        self._read: set[str] = set()  # the user's files

    def expect(self, call: int) -> None:
        """The user's line is about to get the handle of this call."""
        if self._laid:
            self.rank.here.handed = call
        else:
            self._lay()

    def lay_where_likely(self) -> None:
        """Be there before the first handle, when a module that the user has imported by now mentions handles. Takes 2 to 6 ms."""
        self._looks += 1
        if self._laid or self._looks > _LOOKS:
            return
        for path in _users_files():
            if path not in self._read and len(self._read) < _FILES:
                self._read.add(path)
                if _mentions_handles(path):
                    self._lay()
                    return

    def _lay(self) -> None:
        self._laid = True
        for name in ISSUING:
            wrappers.lay(dist.ProcessGroup, name, self.wrap_issue)
        for name in LOOKING:
            wrappers.lay(dist.Work, name, self.wrap_look)

    def follow(self, work: Any, call: int) -> None:
        """From now on note what becomes of the handle of this call."""
        if len(self._open) >= _MOST:
            return
        key = id(work)

        def died(dead: weakref.ref[Any]) -> None:
            known = self._open.get(key)
            if known is None or known[0] is not dead:
                return
            del self._open[key]
            self.trace.calls.mark(call, _FLAGS, _DROPPED)

        self._open[key] = weakref.ref(work, self.rank.guarded(died)), call

    def asked(self, work: Any) -> None:
        """Somebody has waited for the handle, or looked whether it is done."""
        known = self._open.pop(id(work), None)
        if known is not None:
            self.trace.calls.patch(known[1], _WAITED, time.monotonic_ns())

    def end(self) -> None:
        """The interpreter goes down: nobody will wait for what is still open."""
        while self._open:
            _, (_, call) = self._open.popitem()
            self.trace.calls.mark(call, _FLAGS, _DROPPED)

    def wrap_issue(self, original: Any) -> Any:
        """A process group's method that hands its handle to `follow` when the user's line is going to get it."""
        here, follow = self.rank.here, self.rank.guarded(self.follow)

        def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
            outer, here.handed = here.handed, 0  # not 0 where a signal handler issues this in the middle of another
            try:
                work = original(group, *args, **kwargs)
            finally:
                mine, here.handed = here.handed, outer
            if mine and work is not None:
                follow(work, mine)
            return work

        return issue

    def wrap_look(self, original: Any) -> Any:
        asked = self.rank.guarded(self.asked)

        def look(work: Any, *args: Any, **kwargs: Any) -> Any:
            asked(work)
            return original(work, *args, **kwargs)

        return look
