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
    f"distdoctor{os.sep}probe{os.sep}gradients{os.sep}reduced_in_place.py",
)  # what only hands on between the two
_MODULES = tuple(os.sep.join(("torch", "nn", "modules", name)) for name in ("module.py", "container.py"))
_FRONT, _USER, _HANDS_ON, _OTHER, _MODULE = 1, 2, 3, 4, 5
_KINDS = ((_TORCH_FRONT, _FRONT), (_THROUGH, _HANDS_ON), (_MODULES, _MODULE))
_CALLERS = 2  # of a line that are told; what calls a module's forward is no caller
_DEEPEST = 96  # frames; deeper than any training loop seen, and a bound on the cost
_BACKWARD = "_engine_run_backward"  # torch.autograd.graph's, from which the engine of autograd is called
_KEPT = 10_000  # entries; a program that makes functions without end must not fill the rank's memory
_CHAINS = 1_000  # texts of chains that are written; they share their room with all other texts


class Code(NamedTuple):
    """What is known of a code object. `flags` and `blocks` are what a function of torch's tells by its name."""

    kind: int
    flags: int
    blocks: bool  # dist.send and dist.recv ask c10d for a handle and wait for it themselves
    alive: weakref.KeyedRef[int, CodeType]


class Codes:
    """The code objects that were met between users' lines and collectives, by identity, and the places that calls came from.

    Nothing is kept alive: what is known of a code object goes with it.
    """

    def __init__(self, trace: TraceWriter) -> None:
        self._trace = trace
        self.known: dict[int, Code] = {}
        self.dead: Dead[weakref.KeyedRef[int, CodeType]] = Dead()
        # (instruction and code object of the user's line and of its callers) -> (text id of the line, digest of them all)
        self._places: dict[tuple[int, ...], tuple[int, int]] = {}
        # (code object of torch's own, instruction) -> the operation that it asks the process group for, always the same one
        self.operations: dict[tuple[int, int], int] = {}
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
            self._places.clear()
            self.operations.clear()

    def remember(self, frame: FrameType, operation: int) -> None:
        """What this instruction asks for, where it is one of torch's functions for users that asks the process group itself."""
        code = frame.f_code
        about = self.known.get(id(code))
        if about is not None and about.kind == _FRONT and len(self.operations) < _KEPT:
            self.operations[id(code), frame.f_lasti] = operation

    def place(self, frame: FrameType | None) -> tuple[int, int]:
        """(text id of the user's line, digest of it and of the user's calls that led to it), (0, 0) where there is none."""
        if frame is None:
            return 0, 0
        known, learn = self.known, self.learn
        key: tuple[int, ...] = (id(frame.f_code), frame.f_lasti)
        outer = frame.f_back
        callers = 0
        while outer is not None:
            code = outer.f_code
            kind = (known.get(id(code)) or learn(code))[0]
            if kind == _USER:
                key += (id(code), outer.f_lasti)
                callers += 1
                if callers == _CALLERS:
                    break
            elif kind != _MODULE:
                break
            outer = outer.f_back
        place = self._places.get(key)
        return place if place is not None else self._first_time(frame, key)

    def _first_time(self, frame: FrameType, key: tuple[int, ...]) -> tuple[int, int]:
        texts, calls = self._trace.texts, [_call_of(frame)]
        outer = frame
        while 2 * len(calls) < len(key):
            outer = outer.f_back  # type: ignore[assignment]
            if _kind_of(outer.f_code) == _USER:
                calls.append(_call_of(outer))
        text = chain_text(calls)
        place = texts.id(sites.site_of(frame)), digest_of(text)
        if len(self._places) < _KEPT:
            self._places[key] = place
        if next(self._chains) < _CHAINS:
            texts.id(text)
        return place


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


class Caller:
    """What torch's own frames between the operation and the user's line tell."""

    __slots__ = ("blocking_pair", "by_user", "flags", "front", "site", "waits")

    def __init__(self, frame: FrameType | None, codes: Codes) -> None:
        self.front: FrameType | None = None  # torch's function that the user called
        self.waits: FrameType | None = None  # which of them waits for what the innermost one gives: `send` for `isend`
        self.by_user = True  # nothing but torch's functions for users stands between the operation and the user's line
        self.blocking_pair = False
        flags = NATIVE
        if codes.dead:
            codes.forget()
        known, learn = codes.known, codes.learn
        for _ in range(_DEEPEST):
            if frame is None:
                flags |= BY_LIBRARY
                break
            code = frame.f_code
            about = known.get(id(code)) or learn(code)
            kind = about[0]
            if kind == _USER:
                break
            if kind == _FRONT:
                flags = flags & ~NATIVE | about[1]
                if self.front is None:
                    self.front = self.waits = frame
                if about[2]:
                    self.blocking_pair, self.waits = True, frame
            elif kind >= _OTHER:
                self.by_user = False
            frame = frame.f_back
        self.site = frame
        self.flags = flags

    def asynchronous(self, asked: bool) -> bool:
        """Whether the user gets a handle; `asked` is what torch's function asked the process group for."""
        return asked and not self.blocking_pair

    def reduce_op(self) -> int:
        """From the `op` argument of torch's function, as its caller gave it."""
        if self.front is None:
            return UNSEEN
        scope = self.front.f_locals
        op: Any = scope.get("op", scope.get("reduceOp"))
        known = MEMBERS.get(id(op))
        if known is not None:
            return known[0]
        word = (op if isinstance(op, str) else getattr(op, "name", None) or str(op).rpartition(".")[2]).lower()
        return int(REDUCE_OPS.get(word.partition(":")[0], UNSEEN))

    def tag(self) -> int:
        tag = self.front.f_locals.get("tag", 0) if self.front is not None else 0
        return tag if isinstance(tag, int) else 0
