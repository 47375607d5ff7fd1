"""The stream of collectives: every operation of every process group, whoever issues it, as one record each.

torch >= 2.14 tells through hooks on the process group; they see C++ callers (DDP's reducer) as well. What hooks do not tell
(reduce op, tag, whether an object is being sent) is read from torch's own Python frame between the hook and the user's line.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from time import monotonic_ns
from types import FrameType
from typing import Any

import torch
import torch.distributed

from distdoctor.probe import sites
from distdoctor.probe.collectives.callers import NATIVE, Codes, Way, frame_at, waiting_backward
from distdoctor.probe.collectives.handles import Handles
from distdoctor.probe.collectives.held_errors import HeldErrors
from distdoctor.probe.collectives.sent_again import SentAgain
from distdoctor.probe.compile_guard import called_by_cpp
from distdoctor.probe.context import MOST_OPEN, Rank
from distdoctor.probe.interruptions import suppressed
from distdoctor.probe.tensors.digests import bytes_of
from distdoctor.probe.tensors.dtypes import DTYPE_NUMBER
from distdoctor.probe.writer import FOUR, TraceWriter
from distdoctor.recording.trace.layout import (
    CALL,
    CALL_PARTS,
    CALL_PLACE,
    CALL_SIZE,
    GOLDEN,
    MASK,
    POINT_TO_POINT,
    CallFlag,
    Op,
    ReduceOp,
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
ASYNC, FAILED = int(CallFlag.ASYNC), int(CallFlag.FAILED)
COMES_BACK = ASYNC | NATIVE
ON_DEVICE = int(CallFlag.ON_DEVICE)
ALL_REDUCE, SUM, BROADCAST = int(Op.ALL_REDUCE), int(ReduceOp.SUM), int(Op.BROADCAST)
RECV, RECV_ANY, SEND = int(Op.RECV), int(Op.RECV_ANY), int(Op.SEND)
PAIRWISE = frozenset(map(int, POINT_TO_POINT))
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
MOST_KINDS = 10_000  # a program whose sizes never repeat must not fill the rank's memory
_RETURNED = CALL.offsets["returned_ns"]
_FLAGS = CALL.offsets["flags"]


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
        self._number, self._memory, self._at = trace.groups.place_of(self.seq)

    def _texts(self) -> dict[str, int]:
        return {"key": self.key, "members": self.members, "backend": self.backend, "made_at": self.site}

    def extend(
        self,
        signature: int,
        word: int,
        now: int,
        factor: int = GOLDEN,
        mask: int = MASK,
        store: Callable[..., None] = FOUR.pack_into,
    ) -> tuple[int, int, int]:
        """Count one more collective, on the trace as well; its number and the two prefixes up to it.

        A signal handler or another thread may issue a call in the middle of this one: then this one is counted after it. The
        interpreter lets nobody between the last comparison and the assignment, for there is neither a call nor a loop. What is
        stored is what counts then, also of a call that came in the middle of the storing.
        """
        while True:
            count, prefix, site_prefix = seen = self.state
            # `extend` of the layout, written out: this is on the path of every collective.
            extended = (
                count + 1,
                ((prefix ^ signature) * factor + 1) & mask,
                ((site_prefix ^ word) * factor + 1) & mask,
            )
            if self.state is seen:
                self.state = extended
                break
        stored = extended
        while self._number[0] == self.seq:  # else another group has the place of this one on the trace
            store(self._memory, self._at, *stored, now)
            if stored is self.state:
                break
            stored = self.state
        return extended

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
        # And as it is written by one group, line and thread: (signature, two parts of the record).
        self._alike: dict[tuple[Any, ...], tuple[int, bytes, bytes]] = {}
        self._write = trace.calls.parts_of(CALL_PARTS)
        self.codes = Codes(trace)
        self.handles = Handles(rank, trace)
        self._dropped = self.handles.dead
        self.sent_again = SentAgain(rank, trace)
        self._held_errors = HeldErrors(rank, trace)

    def note(
        self,
        group: ProbedGroup,
        op: int,
        tensors: list[torch.Tensor],
        root: int,
        is_async: bool,
        way: Way,
        inner: FrameType | None,
        reduce_op: int = 0,
    ) -> int:
        """Write the record of an operation that is about to be issued. Returns the number of the record.

        `tensors` are those whose sizes count (see SIZED_BY_OUTPUT); only their sizes and dtype are looked at. `inner` is the
        frame in which it is issued, `way` how it came there.
        """
        rank = self.rank
        if self._dropped:
            self.handles.settle()
        flags, thread = way.flags | ASYNC if is_async else way.flags, rank.here.thread
        in_pairs = op in PAIRWISE
        if len(tensors) == 1:
            (one,) = tensors
            if one.is_cuda:
                flags |= ON_DEVICE
            if op == ALL_REDUCE and reduce_op == SUM and rank.on_summed is not None and one.requires_grad:
                rank.on_summed(one, group.ranks)
            what: tuple[Any, ...] = (one.dtype, one.shape)
        else:
            if tensors and tensors[0].is_cuda:
                flags |= ON_DEVICE
            what = tuple(part for t in tensors for part in (t.dtype, t.shape))
        tag = way.tag(inner) if in_pairs else 0
        key = (op, reduce_op, root, flags, group.key, way.site, thread, tag, what)
        known, alike = way.last
        if known != key:  # of a line whose sizes vary
            alike = self._alike.get(key) or self._pack(key, tensors)
            way.last = key, alike
        signature, size, place = alike
        now = monotonic_ns()
        if flags & NATIVE:
            rank.native_ns = now
        if in_pairs:
            number = group.next_of_pair(op, root)
            prefix, site_prefix = group.state[1], way.word
        else:
            number, prefix, site_prefix = group.extend(signature, way.word, now)
        # A call that gives a handle, or that C++ issues, comes back at once: only a synchronous one is awaited.
        returned = now if flags & COMES_BACK else 0
        seq = self._write(now, returned, number, size, prefix, site_prefix, rank.step, place)
        if not returned and way.waits >= 0:
            opened = rank.open
            if len(opened) > MOST_OPEN:
                opened.clear()  # those that failed before they came to wait are forgotten by and by
            opened[id(frame_at(inner, way.waits) if way.waits else inner)] = seq
        if is_async and way.by_user and way.site:
            self.handles.expect(seq)
        error = sys.exception()
        if error is not None:
            self._held_errors.note(error, way.site, seq)
        return seq

    def _pack(self, key: tuple[Any, ...], tensors: list[torch.Tensor]) -> tuple[int, bytes, bytes]:
        """What is alike in all calls of one kind, line and thread: their signature, and two parts of their records."""
        op, reduce_op, root, flags, group, site, thread, tag, what = key
        kind = (op, reduce_op, root, flags, what)
        signature, shape, nbytes, dtype = self._kinds.get(kind) or self._learn(kind, tensors)
        alike = (
            signature,
            CALL_SIZE.pack(nbytes, signature),
            CALL_PLACE.pack(group, shape, site, root, tag, op, flags, reduce_op, dtype, thread),
        )
        if len(self._alike) >= MOST_KINDS:
            self._alike.clear()
        self._alike[key] = alike
        return alike

    def _learn(self, key: tuple[Any, ...], tensors: list[torch.Tensor]) -> tuple[int, int, int, int]:
        op, reduce_op, root, flags = key[:4]
        shape = shape_text(tensors)
        dtype = DTYPE_NUMBER.get(tensors[0].dtype, 0) if tensors else 0
        signature = signature_of(Op(op), dtype, shape, reduce_op, root, flags)
        kind = (signature, self.trace.texts.id(shape), sum(map(bytes_of, tensors)), dtype)
        if len(self._kinds) < MOST_KINDS:
            self._kinds[key] = kind
        return kind

    def attach(self, pg: Any, name: str, ranks: tuple[int, ...], backend: str) -> None:
        """Listen to one process group through its hooks (torch >= 2.14)."""
        group = self.groups[name] = ProbedGroup(self.trace, name, ranks, backend)
        if not HAS_HOOKS:
            return  # the dispatcher tells instead
        rank, note, way_of, frame = self.rank, self.note, self.codes.way, sys._getframe
        names: Mapping[str, Any] = torch._C._distributed_c10d.HookOpName.__members__
        ops = {int(member): int(OP_OF_HOOK.get(word, Op.UNKNOWN)) for word, member in names.items()}

        modules, sent_again, mine = sys.modules, self.sent_again.look, pg.rank()

        def before(args: Any) -> None:
            if rank.silent:
                return
            is_eager = False
            try:
                if "torch._dynamo" in modules:
                    compiler = torch._C._dynamo.eval_frame.set_eval_frame(None)
                    is_eager = True
                try:
                    inner: FrameType | None = frame(1)
                except ValueError:  # a thread of C++
                    inner = waiting_backward()
                way = way_of(inner)
                op = way.operation
                if op is None:
                    op = ops.get(int(args.name), 0)
                    if way.asks:
                        way.operation = op
                if not group.ranks:
                    group.resolve(self.trace)
                if op == ALL_REDUCE:  # of all operations the most frequent one: nothing is asked that is known
                    reduce_op = way.default
                    if reduce_op is None:
                        reduce_op = way.reduce_op(inner)
                    note(group, op, args.input_tensors, -1, args.async_op, way, inner, reduce_op)
                    return
                root = args.root
                if root >= 0:
                    root = group.ranks[root]
                elif op == RECV:
                    op = RECV_ANY
                is_async = args.async_op and not way.blocking_pair
                tensors = args.output_tensors if op in SIZED_BY_OUTPUT else args.input_tensors
                reduce_op = way.reduce_op(inner) if op in REDUCING else 0
                if op == BROADCAST and args.root == mine and way.by_user and len(tensors) == 1:
                    sent_again(tensors[0], way.site)
                note(group, op, tensors, root, is_async, way, inner, reduce_op)
            except Exception as error:
                rank.trouble("collectives", error)
            finally:
                if is_eager:
                    torch._C._dynamo.eval_frame.set_eval_frame(compiler)

        pg.register_pre_hook(HOOK_ID, called_by_cpp(before))

    def detach_all(self) -> None:
        """Take our hooks off every group that still lives.

        A group that is destroyed when the interpreter is gone would give back our functions to nobody: that crashes the process.
        """
        from torch.distributed import distributed_c10d as c10d

        for pg in list(c10d._world.pg_map):
            with suppressed(Exception):
                pg.unregister_pre_hook(HOOK_ID)

    def wrap_wait(self, original: Any) -> Any:
        """`Work.wait` that notes when a synchronous call has come back, and that a handle was waited for."""
        rank, opened, came_back = self.rank, self.rank.open, self.rank.guarded(self.came_back)
        returned, now, caller = self.trace.calls.patch_of(_RETURNED), monotonic_ns, sys._getframe
        asked = self.rank.guarded(self.handles.asked)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = opened.pop(id(caller(1)), 0)
            if not call:
                asked(work)
                began = now()
                try:
                    return original(work, *args, **kwargs)
                finally:
                    rank.waited_ns += now() - began
            try:
                result = original(work, *args, **kwargs) if args or kwargs else original(work)
            except BaseException:
                came_back(call, FAILED)
                raise
            if not rank.silent:
                try:  # what `came_back` does, without its three calls
                    returned(call, now())
                except Exception as error:
                    rank.trouble("came_back", error)
            return result

        return wait

    def came_back(self, call: int, flags: int = 0) -> None:
        """The synchronous call of this number is over; FAILED: left by an exception."""
        self.trace.calls.patch(call, _RETURNED, monotonic_ns())
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
            inner = sys._getframe(2)
            way = copy(self.codes.way(inner))
            way.flags &= ~NATIVE  # our wrapper hides torch's function, through which the user has come
            return self.note(known, int(Op.MONITORED_BARRIER), [], -1, False, way, inner)

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
