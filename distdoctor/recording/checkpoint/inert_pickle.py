"""A pickle read as what it says, with nothing of it run: every class and function becomes an inert value with its name.

A crafted pickle may ask for memory instead of code, so the opcodes are counted and their numbers looked at before they are read.
"""

from __future__ import annotations

import io
import pickle  # read by an Unpickler that resolves no name
import pickletools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

LARGEST = 64 << 20  # bytes; the names and shapes of a million tensors are less
MOST_BYTES = 400 << 20  # of the objects that a pickle makes: those of some 90,000 shards
MOST_NESTED = 10_000
_BYTES = {  # opcode -> bytes of memory, measured with Python 3.11
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID"), 200),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), 112),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "BININT1", "POP"), 16),
    **dict.fromkeys(("MARK", "BUILD", "SETITEM", "SETITEMS", "APPEND", "APPENDS"), 16),
}  # fmt: skip
_OTHER_BYTES = 80

_NO_STATE: Mapping[Any, Any] = MappingProxyType({})


class Inert:
    """What a pickle calls `module.name(*args)`, with the state that it gives to it. It does nothing."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name, self.args = name, args
        self.state: Mapping[Any, Any] = _NO_STATE

    def __call__(self, *args: Any) -> Any:
        if self.name in ("collections.OrderedDict", "builtins.dict") and not args:
            return {}
        return Inert(self.name, args)

    def __setstate__(self, state: Any) -> None:
        """A dictionary, of a class with slots (None, dictionary); what else there is counts as arguments."""
        if isinstance(state, tuple) and len(state) == 2 and state[0] is None:
            state = state[1]
        if isinstance(state, dict):
            self.state = state
        elif isinstance(state, tuple):
            self.args = state

    def append(self, value: Any) -> None:
        """Items of a subclass of list."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a subclass of dict."""


_InPython: Any = pickle._Unpickler  # its opcodes for objects can be replaced


class _Reader(_InPython):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> Any:
        return Inert(sys.intern(f"{module}.{name}"))

    def persistent_load(self, pid: Any) -> Any:
        return Inert("storage", pid if isinstance(pid, tuple) else (pid,))

    def load_newobj(self) -> None:
        args, made = self.stack.pop(), self.stack.pop()
        self.stack.append(made(*args) if isinstance(made, Inert) else Inert("unknown"))

    def load_newobj_ex(self) -> None:
        self.stack.pop()
        self.load_newobj()

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Inert):
            made.__setstate__(state)

    def load_reduce(self) -> None:
        args, made = self.stack.pop(), self.stack.pop()
        self.stack.append(made(*args) if isinstance(made, Inert) and isinstance(args, tuple) else Inert("unknown"))

    def load_setitem(self) -> None:
        _require_flat(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _require_flat(self.stack[::2])
        super().load_setitems()

    def load_additems(self) -> None:
        _require_flat(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        _require_flat(self.stack)
        super().load_frozenset()

    dispatch: ClassVar[dict[int, Any]] = {
        **_InPython.dispatch,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.REDUCE[0]: load_reduce,
    }


def _require_flat(keys: list[Any]) -> None:
    """ValueError: one is a tuple of tuples. Python hashes a tuple as often as it is referred to, for years if each of fifty has
    the one before twice."""
    if any(isinstance(part, tuple | frozenset) for key in keys if isinstance(key, tuple) for part in key):
        raise ValueError("a key in its pickle is a tuple of tuples")


def key_text(key: Any) -> str:
    """What a key is called; of one that may be nested, only its kind: the text of it may be endless."""
    parts = key if isinstance(key, tuple) else (key,)
    return str(key) if all(isinstance(one, str | bytes | int | float | None) for one in parts) else type(key).__name__


def read_inert(data: bytes) -> Any:
    """What the pickle holds. ValueError: it is none, torn, or larger than any checkpoint's."""
    if len(data) > LARGEST:
        raise ValueError(f"its pickle has {len(data):,} bytes")
    try:
        size = nested = 0
        for opcode, value, _ in pickletools.genops(data):
            nested += (opcode.name == "MARK") - (pickletools.markobject in opcode.stack_before)
            size += _BYTES.get(opcode.name, _OTHER_BYTES)
            if nested > MOST_NESTED:
                raise ValueError("its pickle is nested too deeply")
            if size > MOST_BYTES:
                raise ValueError(f"its pickle would take more than {MOST_BYTES >> 20} MiB")
            if opcode.name in ("INST", "OBJ", "EXT1", "EXT2", "EXT4", "LONG4"):
                raise ValueError(f"its pickle uses {opcode.name}, which torch never writes")
            if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(value, int) and value > len(data):
                raise ValueError("its pickle numbers more values than it has bytes")
        return _Reader(io.BytesIO(data)).load()
    except Exception as trouble:  # a torn or crafted one fails in any of the ways that bytes can be wrong
        raise ValueError(f"its pickle is torn or crafted ({type(trouble).__name__}: {trouble})") from None
