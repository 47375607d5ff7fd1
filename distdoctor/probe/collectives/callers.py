"""Who called a collective: the user's line, the calls that led to it, and what torch's own functions between the two tell.

All of it is remembered by code object and instruction: the second call of a line costs a few look-ups and formats nothing.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch.distributed

from distdoctor.probe import sites
from distdoctor.probe.collectives.left_out import leaves_out
from distdoctor.probe.weak_identity import Dead
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.source_line import PASSED_OVER
from distdoctor.recording.trace.layout import CallFlag, ReduceOp, chain_text, digest_of

# Asked once per collective, so these are plain ints: members of an IntFlag cost a microsecond each to combine.
NATIVE, COALESCED, OBJECT = int(CallFlag.NATIVE), int(CallFlag.COALESCED), int(CallFlag.OBJECT)
BY_LIBRARY = int(CallFlag.BY_LIBRARY)
UNSEEN = int(ReduceOp.UNSEEN)
REDUCE_OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN,
              "max": ReduceOp.MAX, "band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR,
              "premul_sum": ReduceOp.PREMUL_SUM}  # fmt: skip
# The usual operations are torch's own constants, which their identity tells; each is kept, so that no other takes its place.
MEMBERS = {
    id(member): (int(number), member)
    for word, number in REDUCE_OPS.items()
    if (member := getattr(torch.distributed.ReduceOp, word.upper(), None)) is not None
}
_TORCH_FRONT = ("distributed_c10d.py", "_functional_collectives.py")  # where torch's own functions for users live
_THROUGH = (
    "c10d_logger.py",
    f"distdoctor{os.sep}probe{os.sep}collectives{os.sep}handles.py",
    f"distdoctor{os.sep}probe{os.sep}gradients{os.sep}detached_gathers.py",
)  # what only hands on between the two
# What stands between a user's function and the line that calls it: of a module's forward, and of a decorated function.
_BETWEEN = tuple(
    os.sep + path.replace("/", os.sep)
    for path in (
        "torch/nn/modules/module.py",
        "torch/nn/modules/container.py",
        "torch/nn/parallel/distributed.py",
        "torch/utils/_contextlib.py",
        "torch/amp/autocast_mode.py",
        "contextlib.py",
        "functools.py",
    )
)
_FRONT, _USER, _HANDS_ON, _OTHER, _BESIDE = 1, 2, 3, 4, 5
_KINDS = ((_TORCH_FRONT, _FRONT), (_THROUGH, _HANDS_ON), (_BETWEEN, _BESIDE))
_CALLERS = 2  # of a line that are told; what stands between a function and its caller is none
_DEEPEST = 96  # frames; deeper than any training loop seen, and a bound on the cost
_BACKWARD = "_engine_run_backward"  # torch.autograd.graph's, from which the engine of autograd is called
_END = 0  # in the place of an instruction: there is no further frame
_KEPT = 10_000  # entries; a program that makes functions without end must not fill the rank's memory
_CHAINS = 1_000  # texts of chains that are written; they share their room with all other texts


class Code(NamedTuple):
    """What is known of a code object. `flags` and `blocks` are what a function of torch's tells by its name."""

    kind: int
    flags: int
    blocks: bool  # dist.send and dist.recv ask c10d for a handle and wait for it themselves
    alive: weakref.KeyedRef[int, CodeType]


class Way:
    """What torch's own frames between an operation and the user's line tell, and that line: the same for every call that comes by
    the same instructions. `front` and `waits` are frames, counted from the innermost one; -1: none is."""

    __slots__ = (
        "asks",
        "blocking_pair",
        "by_user",
        "default",
        "flags",
        "front",
        "last",
        "operation",
        "site",
        "waits",
        "word",
    )

    def __init__(self) -> None:
        self.flags = NATIVE
        self.front = -1  # torch's function that the user called
        self.waits = -1  # which of them waits for what the innermost one gives: `send` for `isend`
        self.by_user = True  # nothing but torch's functions for users stands between the operation and the user's line
        self.blocking_pair = False
        self.site = 0  # text id of the user's line; 0: there is none
        self.word = 0  # digest of it and of the user's calls that led to it
        self.asks = (
            False  # the innermost frame is of torch's functions for users: it asks for one operation, always the same
        )
        self.operation: int | None = None  # that one, once it is known
        self.default: int | None = None  # the reduction, where the call leaves it out
        # What was sent last, as `CollectivesStream.note` knows it: a line that sends the same again is asked for nothing more.
        self.last: tuple[tuple[Any, ...], tuple[int, bytes, bytes]] = ((), (0, b"", b""))

    def asynchronous(self, asked: bool) -> bool:
        """Whether the user gets a handle; `asked` is what torch's function asked the process group for."""
        return asked and not self.blocking_pair

    def reduce_op(self, inner: FrameType | None) -> int:
        """From the `op` argument of torch's function, as its caller gave it."""
        if self.default is not None:
            return self.default
        front = frame_at(inner, self.front) if self.front else inner
        if front is None:
            return UNSEEN
        scope = front.f_locals
        op: Any = scope["op"] if "op" in scope else scope.get("reduceOp")
        known = MEMBERS.get(id(op))
        if known is not None:
            return known[0]
        word = (op if isinstance(op, str) else getattr(op, "name", None) or str(op).rpartition(".")[2]).lower()
        return int(REDUCE_OPS.get(word.partition(":")[0], UNSEEN))

    def tag(self, inner: FrameType | None) -> int:
        front = frame_at(inner, self.front)
        tag = front.f_locals.get("tag", 0) if front is not None else 0
        return tag if isinstance(tag, int) else 0


def frame_at(inner: FrameType | None, at: int) -> FrameType | None:
    """The frame so many calls further out; None for -1."""
    if at < 0:
        return None
    while at and inner is not None:
        inner, at = inner.f_back, at - 1
    return inner


class Codes:
    """The code objects that were met between users' lines and collectives, by identity, and the ways that calls came.

    Nothing is kept alive: what is known of a code object goes with it.
    """

    def __init__(self, trace: TraceWriter) -> None:
        self._trace = trace
        self.known: dict[int, Code] = {}
        self.dead: Dead[weakref.KeyedRef[int, CodeType]] = Dead()
        # A tree: the instruction of each frame, innermost first -> the next frame's, in the end the way. An instruction is
        # known by its address, which lies within its code object (Python 3.11 and later).
        self._ways: dict[int, Any] = {}
        self._size = 0
        self._nowhere = Way()
        self._nowhere.flags |= BY_LIBRARY
        self._chains = itertools.count()

    def learn(self, code: CodeType) -> Code:
        """Look at a code object for the first time."""
        key = id(code)
        kind, name = _kind_of(code), code.co_name
        flags = COALESCED if name in ("batch_isend_irecv", "_coalescing_manager") else OBJECT if "object" in name else 0
        about = Code(kind, flags, name in ("send", "recv"), weakref.KeyedRef(code, self.dead.append, key))
        if len(self.known) < _KEPT:
            self.known[key] = about
        return about

    def forget(self) -> None:
        """What is known of code objects that are gone: another one may have got the identity of such a one."""
        for one in self.dead.each():
            self.known.pop(one.key, None)
            self._ways, self._size = {}, 0

    def way(self, inner: FrameType | None) -> Way:
        """How a call came here that is issued in this frame."""
        if self.dead:
            self.forget()
        if inner is None:
            return self._nowhere
        found: Any = self._ways
        frame: FrameType | None = inner
        while frame is not None:
            found = found.get(id(frame.f_code) + frame.f_lasti)
            if found.__class__ is not dict:
                break
            frame = frame.f_back
        else:
            found = found.get(_END)
        return found if found is not None else self._first_time(inner)

    def _first_time(self, inner: FrameType) -> Way:
        way, path = Way(), list[FrameType | None]()
        line = self._to_the_line(inner, way, path)
        if line is not None:
            self._to_its_callers(line, way, path)
        keys = [_END if one is None else id(one.f_code) + one.f_lasti for one in path]
        known = all(one is None or id(one.f_code) in self.known for one in path)
        if known and self._size + len(keys) < _KEPT and len(keys) <= _DEEPEST:
            self._size += len(keys)
            node = self._ways
            for key in keys[:-1]:
                node = node.setdefault(key, {})
                if node.__class__ is not dict:  # a handler of a signal came by in the meantime
                    return way
            node[keys[-1]] = way
        return way

    def _to_the_line(self, inner: FrameType, way: Way, path: list[FrameType | None]) -> FrameType | None:
        """Look at the frames up to the user's own, None where there is none."""
        frame: FrameType | None = inner
        called: CodeType | None = None  # torch's function, until the call of it has been looked at
        for at in range(_DEEPEST):
            path.append(frame)
            if frame is None:
                way.flags |= BY_LIBRARY
                return None
            about = self.known.get(id(frame.f_code)) or self.learn(frame.f_code)
            if called is not None and about.kind != _HANDS_ON:
                if self._size < _KEPT and leaves_out(frame, called, "op"):
                    way.default = way.reduce_op(inner)
                called = None
            if about.kind == _USER:
                return frame
            if about.kind == _FRONT:
                way.asks = way.asks or not at
                way.flags = way.flags & ~NATIVE | about.flags
                if way.front < 0:
                    way.front = way.waits = at
                    called = frame.f_code
                if about.blocks:
                    way.blocking_pair, way.waits = True, at
            elif about.kind >= _OTHER:
                way.by_user = False
            frame = frame.f_back
        path.append(frame)  # which makes the path longer than any that is kept
        return frame

    def _to_its_callers(self, line: FrameType, way: Way, path: list[FrameType | None]) -> None:
        """The text of the user's line, and the digest of it and of the user's calls that led to it."""
        texts, calls = self._trace.texts, [_call_of(line)]
        outer = line.f_back
        while outer is not None and len(calls) <= _CALLERS:
            path.append(outer)
            kind = (self.known.get(id(outer.f_code)) or self.learn(outer.f_code)).kind
            if kind == _USER:
                calls.append(_call_of(outer))
            elif kind != _BESIDE:
                break
            outer = outer.f_back
        else:
            path += [None] if outer is None else []
        text = chain_text(calls)
        way.site, way.word = texts.id(sites.site_of(line)), digest_of(text)
        if next(self._chains) < _CHAINS:
            texts.id(text)


def _kind_of(code: CodeType) -> int:
    path = code.co_filename.removesuffix(PASSED_OVER)
    if sites.belongs_to_user(path):
        return _USER
    for ends, kind in _KINDS:
        if path.endswith(ends):
            return kind
    return _OTHER


def _call_of(frame: FrameType) -> tuple[str, tuple[int, int, int, int], str]:
    """(path, line, last line, column and last column of the call that a frame is in, function). Before Python 3.11 no columns."""
    code, at = frame.f_code, frame.f_lasti // 2
    path, _, function = sites.site_of(frame).split("\0")
    line, last, column, end = next(itertools.islice(getattr(code, "co_positions", tuple)(), at, None), (None,) * 4)
    if None in (line, last, column, end):
        return path, (frame.f_lineno, frame.f_lineno, -1, -1), function
    return path, (line, last, column, end), function  # type: ignore[return-value]


def waiting_backward() -> FrameType | None:
    """Where a backward pass is waited for, None where none is under way.

    Autograd has a thread of its own for each device but the CPU, without a Python frame: there DDP's reducer issues its
    collectives while the thread that called `backward` waits.
    """
    frames = sys._current_frames()
    try:
        return next((one for one in frames.values() if one.f_code.co_name == _BACKWARD), None)
    finally:
        frames.clear()
