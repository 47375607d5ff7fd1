"""The stream of collectives: every operation of every process group, whoever issues it, as one record each.

torch >= 2.14 tells through hooks on the process group; they see C++ callers (DDP's reducer) as well. What hooks do not tell
(reduce op, tag, whether an object is being sent) is read from torch's own Python frame between the hook and the user's line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.distributed

from distdoctor.probe import sites
from distdoctor.probe.collectives.handles import Handles
from distdoctor.probe.compile_guard import uncompiled
from distdoctor.probe.context import Rank
from distdoctor.probe.tensors.dtypes import DTYPE_NUMBER
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import (
    CALL,
    POINT_TO_POINT,
    ROOTED,
    CallFlag,
    Op,
    ReduceOp,
    digest_of,
    extend,
    ranks_text,
    signature_of,
)

# DISTDOCTOR_COLLECTIVES=dispatcher takes the way of older versions, should hooks make trouble.
HAS_HOOKS = (
    hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
    and os.environ.get("DISTDOCTOR_COLLECTIVES") != "dispatcher"
)
HOOK_ID = 0x0D0C  # any number that no one else uses on the same group

# Everything below is asked once per collective, so it is plain ints: members of an IntFlag cost a microsecond each to combine.
ASYNC, NATIVE, FAILED = int(CallFlag.ASYNC), int(CallFlag.NATIVE), int(CallFlag.FAILED)
COMES_BACK = ASYNC | NATIVE
COALESCED, OBJECT, BY_LIBRARY = int(CallFlag.COALESCED), int(CallFlag.OBJECT), int(CallFlag.BY_LIBRARY)
ON_DEVICE = int(CallFlag.ON_DEVICE)
UNSEEN = int(ReduceOp.UNSEEN)
RECV, RECV_ANY, SEND = int(Op.RECV), int(Op.RECV_ANY), int(Op.SEND)
PAIRWISE = frozenset(map(int, POINT_TO_POINT))
WITH_ROOT = frozenset(map(int, ROOTED))
REDUCING = frozenset(
    map(
        int,
        (
            Op.ALL_REDUCE,
            Op.REDUCE,
            Op.REDUCE_SCATTER,
            Op.REDUCE_SCATTER_TENSOR,
            Op.ALL_REDUCE_COALESCED,
            Op.REDUCE_SCATTER_COALESCED,
        ),
    )
)
# Operations whose size everybody agrees on is the size of what comes out.
SIZED_BY_OUTPUT = frozenset(
    map(
        int,
        (
            Op.REDUCE_SCATTER,
            Op.REDUCE_SCATTER_TENSOR,
            Op.REDUCE_SCATTER_COALESCED,
            Op.SCATTER,
            Op.RECV,
            Op.RECV_ANY,
        ),
    )
)
# Names of torch._C._distributed_c10d.HookOpName (torch 2.14-2.15).
OP_OF_HOOK = {
    "SEND": Op.SEND,
    "RECV": Op.RECV,
    "BROADCAST": Op.BROADCAST,
    "ALLREDUCE": Op.ALL_REDUCE,
    "REDUCE": Op.REDUCE,
    "ALLGATHER": Op.ALL_GATHER,
    "REDUCE_SCATTER": Op.REDUCE_SCATTER,
    "ALLTOALL": Op.ALL_TO_ALL,
    "BARRIER": Op.BARRIER,
    "SCATTER": Op.SCATTER,
    "GATHER": Op.GATHER,
    "SPLIT": Op.SPLIT,
    "NEW_WINDOW": Op.NEW_WINDOW,
    "ALLREDUCE_COALESCED": Op.ALL_REDUCE_COALESCED,
    "ALLGATHER_BASE": Op.ALL_GATHER_INTO_TENSOR,
    "ALLGATHER_COALESCED": Op.ALL_GATHER_COALESCED,
    "ALLGATHER_INTO_TENSOR_COALESCED": Op.ALL_GATHER_COALESCED,
    "REDUCE_SCATTER_BASE": Op.REDUCE_SCATTER_TENSOR,
    "REDUCE_SCATTER_TENSOR_COALESCED": Op.REDUCE_SCATTER_COALESCED,
    "ALLTOALL_BASE": Op.ALL_TO_ALL_SINGLE,
}
REDUCE_OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN,
              "max": ReduceOp.MAX, "band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR,
              "premul_sum": ReduceOp.PREMUL_SUM}  # fmt: skip
# The usual operations are torch's own constants, which their identity tells; each is kept, so that no other takes its place.
MEMBERS = {
    id(member): (int(number), member)
    for word, number in REDUCE_OPS.items()
    if (member := getattr(torch.distributed.ReduceOp, word.upper(), None)) is not None
}
_RETURNED = CALL.offsets["returned_ns"]
_FLAGS = CALL.offsets["flags"]
_TORCH_FRONT = ("distributed_c10d.py", "_functional_collectives.py")  # where torch's own functions for users live
_THROUGH = (
    "c10d_logger.py",
    f"distdoctor{os.sep}probe{os.sep}collectives{os.sep}handles.py",
)  # what only hands on between the two
_FRONT, _USER, _OTHER, _HANDS_ON = 1, 2, 3, 4


class ProbedGroup:
    """One process group of this rank: its counters and running digests. `ranks` are global; empty until they are known."""

    def __init__(self, trace: TraceWriter, name: str, ranks: tuple[int, ...], backend: str) -> None:
        self.name, self.ranks = name, ranks
        self.key = trace.texts.id(name)
        self.members = trace.texts.id(ranks_text(ranks))
        self.backend = trace.texts.id(backend)
        self.site = trace.texts.id(sites.user_site())
        # (calls so far, prefix digest, site prefix): one object, so that whoever interrupts sees all of a call or nothing.
        self.state = (0, 0, 0)
        self.pairs: dict[tuple[int, bool], Iterator[int]] = {}
        self.seq = trace.groups.write(**self._texts())

    def _texts(self) -> dict[str, int]:
        return {"key": self.key, "members": self.members, "backend": self.backend, "made_at": self.site}

    def extend(self, signature: int, word: int) -> tuple[int, int, int]:
        """Count one more collective; its number and the two prefixes up to it.

        A signal handler or another thread may issue a call in the middle of this one: then this one is counted after it. The
        interpreter lets nobody between the last comparison and the assignment, for there is neither a call nor a loop.
        """
        while True:
            seen = self.state
            count, prefix, site_prefix = seen
            extended = (count + 1, extend(prefix, signature), extend(site_prefix, word))
            if self.state is seen:
                self.state = extended
                return extended

    def store(self, trace: TraceWriter, now: int) -> None:
        """Bring the counters on the trace up to date: also those of a call that came in the middle of this."""
        stored = None
        while stored is not self.state:
            stored = self.state
            trace.groups.overwrite(self.seq, *stored, now)

    def resolve(self, trace: TraceWriter) -> None:
        """Find out who belongs to the group, once torch has written it down."""
        from torch.distributed import distributed_c10d as c10d

        for pg, name in c10d._world.pg_names.items():
            if name == self.name:
                self.ranks = tuple(c10d._world.pg_group_ranks.get(pg, ())) or tuple(range(pg.size()))
        self.members = trace.texts.id(ranks_text(self.ranks))
        trace.groups.rewrite(self.seq, **self._texts())

    def next_of_pair(self, op: int, peer: int) -> int:
        """The sequence number of a call from point to point: per (peer, direction)."""
        return next(self.pairs.setdefault((peer, op == SEND), itertools.count(1)))


class Caller:
    """What torch's own frames between the operation and the user's line tell."""

    __slots__ = ("blocking_pair", "by_user", "flags", "front", "site")
    kinds: ClassVar[dict[str, int]] = {}  # source file -> _FRONT, _USER, _OTHER, _HANDS_ON

    def __init__(self, frame: FrameType | None) -> None:
        self.front: FrameType | None = None  # torch's function that the user called
        self.by_user = True  # nothing but torch's functions for users stands between the operation and the user's line
        self.blocking_pair = False  # dist.send and dist.recv ask c10d for a handle and wait for it themselves
        flags = NATIVE
        kinds = self.kinds
        for _ in range(96):
            if frame is None:
                flags |= BY_LIBRARY
                break
            code = frame.f_code
            kind = kinds.get(code.co_filename) or self._kind_of(frame)
            if kind == _USER:
                break
            if kind == _FRONT:
                flags &= ~NATIVE
                name = code.co_name
                if self.front is None:
                    self.front = frame
                if name == "send" or name == "recv":
                    self.blocking_pair = True
                elif "object" in name:
                    flags |= OBJECT
                elif name == "batch_isend_irecv" or name == "_coalescing_manager":
                    flags |= COALESCED
            elif kind == _OTHER:
                self.by_user = False
            frame = frame.f_back
        self.site = frame
        self.flags = flags

    @classmethod
    def _kind_of(cls, frame: FrameType) -> int:
        path = frame.f_code.co_filename
        if sites.is_users(frame):
            kind = _USER
        else:
            kind = _FRONT if path.endswith(_TORCH_FRONT) else _HANDS_ON if path.endswith(_THROUGH) else _OTHER
        if len(cls.kinds) < 10_000:
            cls.kinds[path] = kind
        return kind

    def asynchronous(self, asked: bool) -> bool:
        """Whether the user gets a handle; `asked` is what torch's function asked the process group for."""
        return asked and not self.blocking_pair

    def reduce_op(self) -> int:
        """From the `op` argument of torch's function, as its caller gave it."""
        if self.front is None:
            return UNSEEN
        scope = self.front.f_locals
        op = scope.get("op", scope.get("reduceOp"))
        known = MEMBERS.get(id(op))
        if known is not None:
            return known[0]
        word = (op if isinstance(op, str) else getattr(op, "name", None) or str(op).rpartition(".")[2]).lower()
        return int(REDUCE_OPS.get(word.partition(":")[0], UNSEEN))

    def tag(self) -> int:
        tag = self.front.f_locals.get("tag", 0) if self.front is not None else 0
        return tag if isinstance(tag, int) else 0


def shape_text(tensors: list[torch.Tensor]) -> str:
    """`[64, 3]`, several joined by `;`; beyond four tensors the rest is counted with their elements."""
    shown = ";".join(str(list(t.shape)) for t in tensors[:4])
    if len(tensors) > 4:
        shown += f";+{len(tensors) - 4} tensors, {sum(t.numel() for t in tensors[4:])} elements"
    return shown


class CollectivesStream:
    """Writes one record per operation. Every method that torch calls is guarded: it neither raises nor blocks."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self.groups: dict[str, ProbedGroup] = {}
        # What is the same for every call of one kind is worked out once: (signature, text id of the shape, bytes, dtype).
        self._kinds: dict[tuple[Any, ...], tuple[int, int, int, int]] = {}
        self._sites: dict[tuple[str, int, str], tuple[int, int]] = {}
        self.handles = Handles(rank, trace)

    def note(
        self,
        group: ProbedGroup,
        op: int,
        tensors: list[torch.Tensor],
        root: int,
        is_async: bool,
        caller: Caller,
        reduce_op: int = 0,
    ) -> int:
        """Write the record of an operation that is about to be issued. Returns the number of the record.

        `tensors` are those whose sizes count (see SIZED_BY_OUTPUT); only their sizes and dtype are looked at.
        """
        trace = self.trace
        flags = caller.flags | ASYNC if is_async else caller.flags
        if tensors and tensors[0].is_cuda:
            flags |= ON_DEVICE
        if len(tensors) == 1:
            key: tuple[Any, ...] = (op, reduce_op, root, flags, tensors[0].dtype, tensors[0].shape)
        else:
            key = (op, reduce_op, root, flags, *(part for t in tensors for part in (t.dtype, t.shape)))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._learn(key, tensors)
        signature, shape, nbytes, dtype = kind
        site, word = self._site(caller.site)
        now = time.monotonic_ns()
        if flags & NATIVE:
            self.rank.native_ns = now
        tag = 0
        if op in PAIRWISE:
            tag, number = caller.tag(), group.next_of_pair(op, root)
            prefix, site_prefix = group.state[1:]
        else:
            number, prefix, site_prefix = group.extend(signature, word)
            group.store(trace, now)
        # A call that gives a handle, or that C++ issues, comes back at once: only a synchronous one is awaited.
        returned, here = now if flags & COMES_BACK else 0, self.rank.here
        seq: int = trace.calls.write(
            entered_ns=now, returned_ns=returned, number=number, nbytes=nbytes, signature=signature,
            prefix=prefix, site_prefix=site_prefix, step=self.rank.step, group=group.key, shape=shape,
            site=site, root=root, tag=tag, op=op, flags=flags, reduce_op=reduce_op, dtype=dtype, thread=here.thread,
        )  # fmt: skip
        if not returned and caller.front is not None:
            here.opened(caller.front, seq)
        if is_async and caller.by_user and caller.site is not None:
            self.handles.expect(seq)
        return seq

    def _learn(self, key: tuple[Any, ...], tensors: list[torch.Tensor]) -> tuple[int, int, int, int]:
        op, reduce_op, root, flags = key[:4]
        shape = shape_text(tensors)
        dtype = DTYPE_NUMBER.get(tensors[0].dtype, 0) if tensors else 0
        signature = signature_of(Op(op), dtype, shape, reduce_op, root, flags)
        kind = (signature, self.trace.texts.id(shape), sum(t.nbytes for t in tensors), dtype)
        if len(self._kinds) < 10_000:  # a program whose sizes never repeat must not fill the rank's memory
            self._kinds[key] = kind
        return kind

    def _site(self, frame: FrameType | None) -> tuple[int, int]:
        """(text id, digest) of the user's line."""
        if frame is None:
            return 0, 0
        code = frame.f_code
        key = (code.co_filename, frame.f_lineno, code.co_name)
        known = self._sites.get(key)
        if known is None:
            text = sites.site_of(frame)
            known = self.trace.texts.id(text), digest_of(text)
            if len(self._sites) < 10_000:
                self._sites[key] = known
        return known

    def attach(self, pg: Any, name: str, ranks: tuple[int, ...], backend: str) -> None:
        """Listen to one process group through its hooks (torch >= 2.14)."""
        group = self.groups[name] = ProbedGroup(self.trace, name, ranks, backend)
        if not HAS_HOOKS:
            return  # the dispatcher tells instead
        rank, note = self.rank, self.note
        names: Mapping[str, Any] = torch._C._distributed_c10d.HookOpName.__members__
        ops = {int(member): int(OP_OF_HOOK.get(word, Op.UNKNOWN)) for word, member in names.items()}

        def before(args: Any) -> None:
            if rank.silent:
                return
            try:
                op = ops.get(int(args.name), 0)
                caller = Caller(sys._getframe(2))
                root = args.root
                if not group.ranks:
                    group.resolve(self.trace)
                if root >= 0:
                    root = group.ranks[root]
                elif op == RECV:
                    op = RECV_ANY
                is_async = caller.asynchronous(args.async_op)
                tensors = args.output_tensors if op in SIZED_BY_OUTPUT else args.input_tensors
                reduce_op = caller.reduce_op() if op in REDUCING else 0
                note(group, op, tensors, root, is_async, caller, reduce_op)
            except Exception as error:
                rank.trouble("collectives", error)

        pg.register_pre_hook(HOOK_ID, uncompiled(before))

    def detach_all(self) -> None:
        """Take our hooks off every group that still lives.

        A group that is destroyed when the interpreter is gone would give back our functions to nobody: that crashes the process.
        """
        from torch.distributed import distributed_c10d as c10d

        for pg in list(c10d._world.pg_map):
            with contextlib.suppress(Exception):
                pg.unregister_pre_hook(HOOK_ID)

    def wrap_wait(self, original: Any) -> Any:
        """`Work.wait` that notes when a synchronous call has come back, and that a handle was waited for."""
        rank, here, came_back = self.rank, self.rank.here, self.rank.guarded(self.came_back)
        asked = self.rank.guarded(self.handles.asked)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = here.open.pop(id(sys._getframe().f_back), 0)
            if not call:
                asked(work)
                began = time.monotonic_ns()
                try:
                    return original(work, *args, **kwargs)
                finally:
                    rank.waited_ns += time.monotonic_ns() - began
            try:
                result = original(work, *args, **kwargs)
            except BaseException:
                came_back(call, FAILED)
                raise
            came_back(call)
            return result

        return wait

    def came_back(self, call: int, flags: int = 0) -> None:
        """The synchronous call of this number is over; FAILED: left by an exception."""
        self.trace.calls.patch(call, _RETURNED, time.monotonic_ns())
        if flags:
            self.trace.calls.mark(call, _FLAGS, flags)

    def wrap_monitored_barrier(self, original: Any) -> Any:
        """The one collective that hooks do not see: it is made of sends and receives inside C++."""

        @self.rank.guarded
        def begin(group: Any) -> int | None:
            from torch.distributed import distributed_c10d as c10d

            pg = group if group is not None else c10d._get_default_group()
            known = self.groups.get(c10d._world.pg_names.get(pg, ""))
            if known is None:
                return None
            caller = Caller(sys._getframe(2))
            caller.flags &= ~NATIVE  # our wrapper hides torch's function, through which the user has come
            return self.note(known, int(Op.MONITORED_BARRIER), [], -1, False, caller)

        came_back = self.rank.guarded(self.came_back)

        def monitored_barrier(group: Any = None, *args: Any, **kwargs: Any) -> Any:
            call = begin(group)
            try:
                result = original(group, *args, **kwargs)
            except BaseException:
                if call:
                    came_back(call, FAILED)
                raise
            if call:
                came_back(call)
            return result

        return monitored_barrier
