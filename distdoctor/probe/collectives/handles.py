"""What becomes of the handles that asynchronous collectives give: waited for, looked at, or dropped as they are; and whether
what is on its way was changed before anybody asked.

Only handles that the user's own line gets back are followed; what a library does with its own is its business. The handle is
held by a weak reference, so it dies when the user lets go of it, and that is noted with the next call. Programs without handles
do not pay for the wrappers: a source file of the user's that mentions handles brings them, else the first handle, which is not
followed.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import is_readable
from distdoctor.probe.weak_identity import Dead
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import CALL, CallFlag

# Methods of a process group through which torch's own Python functions issue an operation and get the handle back. No `barrier`:
# it has no result.
ISSUING = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall", "alltoall_base", "gather", "scatter", "recv", "recv_anysource", "send",
)  # fmt: skip
SENDING = "send"  # its result is on the other rank: nobody has to wait for it to read one
# Which argument of these is only read: what stands there is the user's until the operation is over.
READ = {
    SENDING: 0, "allgather": 1, "_allgather_base": 1, "reduce_scatter": 1, "_reduce_scatter_base": 1, "alltoall": 1,
    "alltoall_base": 1, "gather": 1, "scatter": 1,
}  # fmt: skip
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
_CHANGED = int(CallFlag.CHANGED)
_LONGEST_SOURCE = 1 << 20  # bytes
_LOOKS = 3  # at the imported modules: when the first groups are made
_FILES = 200  # read at most: where they lie on a slow disk, a rank must not wait for a whole repository
_WATCHED = 4  # tensors of one operation that are looked at again
_SPOTS = 64  # elements of each
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
    return any(word in source for word in (b"async_op", b"irecv", b"isend"))


class OnTheWay:
    """A tensor that an operation reads: as it was when the operation was issued."""

    __slots__ = ("_spots", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self._spots = _spots(tensor)

    def is_changed(self) -> bool:
        """Whether elements of it have other values now. Views of one buffer share their version, so that alone says nothing."""
        tensor = self._tensor()
        return tensor is not None and tensor._version != self._version and _spots(tensor) != self._spots


def on_the_way(given: Any) -> Iterator[OnTheWay]:
    """What can be compared later of the tensors that an operation is given to read: a few, plain ones on the CPU."""
    for tensor in given[:_WATCHED] if isinstance(given, list) else (given,):
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        if not tensor.is_inference() and tensor.numel() and tensor.is_contiguous() and is_readable(tensor):
            yield OnTheWay(tensor)


def _spots(tensor: torch.Tensor) -> bytes:
    """The bytes of elements spread over a tensor: of all of a small one."""
    flat = tensor.detach().view(-1)
    every = max(1, flat.numel() // _SPOTS)
    return flat[every // 2 :: every].contiguous().view(torch.uint8).numpy().tobytes()


class Followed(weakref.ref[Any]):
    """A handle, and the call that gave it."""

    __slots__ = ("call", "has_result", "key", "read")
    call: int
    has_result: bool
    key: int
    read: tuple[OnTheWay, ...]


class Handles:
    """The handles that are on their way: who is asked for is waited for, who dies unasked is dropped."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._open: dict[int, Followed] = {}
        self.dead: Dead[Followed] = Dead()
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

    def follow(self, work: Any, call: int, name: str, args: tuple[Any, ...]) -> None:
        """From now on note what becomes of the handle of this call, and of what it reads."""
        self.settle()
        if len(self._open) >= _MOST:
            return
        followed = Followed(work, self.dead.append)
        followed.key, followed.call, followed.has_result = id(work), call, name != SENDING
        at = READ.get(name, len(args))
        followed.read = tuple(on_the_way(args[at])) if at < len(args) else ()
        self._open[followed.key] = followed

    def settle(self) -> None:
        """Note what the user has let go of since: nobody has asked it."""
        for one in self.dead.each():
            if self._open.get(one.key) is one:
                self._open.pop(one.key, None)
            if one.has_result:
                self.trace.calls.mark(one.call, _FLAGS, _DROPPED)

    def asked(self, work: Any) -> None:
        """Somebody has waited for the handle, or looked whether it is done."""
        if self.dead:
            self.settle()
        known = self._open.pop(id(work), None)
        if known is not None:
            self.trace.calls.patch(known.call, _WAITED, time.monotonic_ns())
            if any(one.is_changed() for one in known.read):
                self.trace.calls.mark(known.call, _FLAGS, _CHANGED)

    def end(self) -> None:
        """The interpreter goes down: nobody will wait for what is still open."""
        self.settle()
        while self._open:
            _, one = self._open.popitem()
            if one.has_result:
                self.trace.calls.mark(one.call, _FLAGS, _DROPPED)

    def wrap_issue(self, original: Any) -> Any:
        """A process group's method that hands its handle to `follow` when the user's line is going to get it."""
        here, follow, name = self.rank.here, self.rank.guarded(self.follow), getattr(original, "__name__", "")

        def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
            outer, here.handed = here.handed, 0  # not 0 where a signal handler issues this in the middle of another
            try:
                work = original(group, *args, **kwargs)
            finally:
                mine, here.handed = here.handed, outer
            if mine and work is not None:
                follow(work, mine, name, args)
            return work

        return issue

    def wrap_look(self, original: Any) -> Any:
        asked = self.rank.guarded(self.asked)

        def look(work: Any, *args: Any, **kwargs: Any) -> Any:
            asked(work)
            return original(work, *args, **kwargs)

        return look
