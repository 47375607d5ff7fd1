"""The generators that samples may draw from, and whether they were drawn from: states are read, nothing is drawn.

A generator that got another seed meanwhile, or another one in its place, was not drawn from: what it began with says nothing
about the numbers that it gave, which may be a function of the sample.
"""

from __future__ import annotations

import hashlib
import random
import sys
import types
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from distdoctor.probe.variables import attributes_of

LEVELS = 4  # of attributes: a subset's data set, its transforms, one of them, and the generator that this one holds
LOOKED_INTO = 512  # objects and containers of a data set
ENTRIES = 64  # of each
_WORDS = 624  # of the state of a Mersenne Twister, all of which it replaces at a time
_TWISTS = 8192  # that one batch may draw: five million words
_AT_A_TIME = 256
_CONTAINERS = (dict, list, tuple)
_NOT_ENTERED = (str, bytes, int, float, complex, torch.Tensor, types.ModuleType, types.FunctionType, type)


class Reading(NamedTuple):
    """One generator at one moment. `seed`: what drawing does not change; `twister`: the words of a Mersenne Twister."""

    generator: Any
    state: bytes
    seed: bytes
    twister: array[int] | None = None


def defaults() -> list[Any]:
    """The default generators of torch, Python and NumPy; None for NumPy's where nobody has imported it."""
    numpy = sys.modules.get("numpy.random")
    return [
        torch.default_generator,
        getattr(random, "_inst", None),
        getattr(getattr(numpy, "mtrand", None), "_rand", None),
    ]


def held_by(dataset: Any) -> list[Any]:
    """The generators in the attributes of a data set, and of what it holds: every worker that is forked has a copy of them."""
    level, seen, found, left = [dataset], {id(dataset)}, [], LOOKED_INTO
    for _ in range(LEVELS):
        below: list[Any] = []
        while level and left:
            left -= 1
            one, level = level[0], level[1:]
            inside = _entries(one)
            named = {id(inner): inner for inner in inside if not issubclass(type(inner), _NOT_ENTERED)}
            fresh = [inner for at, inner in named.items() if at not in seen]
            seen.update(named)
            found += [inner for inner in fresh if _is_generator(inner)]
            level += [inner for inner in fresh if issubclass(type(inner), _CONTAINERS)]
            below += [inner for inner in fresh if attributes_of(inner)]
        level = below
    return found


def _entries(one: Any) -> list[Any]:
    """What lies in a container, or in the attributes of another object; no code of its class is run."""
    inside: Any = one if issubclass(type(one), _CONTAINERS) else attributes_of(one)
    if issubclass(type(inside), dict):
        return list(dict.values(inside))[:ENTRIES]
    kind: Any = list if issubclass(type(inside), list) else tuple
    return list(kind.__getitem__(inside, slice(ENTRIES)))


def _is_generator(held: Any) -> bool:
    if issubclass(type(held), torch.Generator):
        return bool(held.device.type == "cpu")
    return type(held) is random.Random or _numpy_state(held) is not None


def _numpy_state(held: Any) -> dict[str, Any] | None:
    """What NumPy says of the state of one of its generators; None of anything else."""
    if not type(held).__module__.startswith("numpy.random"):
        return None
    read = getattr(held, "get_state", None)  # of a RandomState
    state = read(legacy=False) if read is not None else getattr(getattr(held, "bit_generator", held), "state", None)
    return state if isinstance(state, dict) and isinstance(state.get("state"), dict) else None


def read(generators: Iterable[Any]) -> list[Reading]:
    """The states of these generators as they are."""
    return [_read(one) for one in generators]


def _read(generator: Any) -> Reading:
    if generator is None:
        return Reading(None, b"", b"")
    if isinstance(generator, torch.Generator):
        return Reading(generator, generator.get_state().numpy().tobytes(), str(generator.initial_seed()).encode())
    if isinstance(generator, random.Random):
        words = array("I", generator.getstate()[1])
        return Reading(generator, words.tobytes(), b"", words[:_WORDS])
    state = (_numpy_state(generator) or {"state": {}})["state"]
    if "pos" in state:
        key = array("I", state["key"].tobytes())
        return Reading(generator, key.tobytes() + array("I", [state["pos"]]).tobytes(), b"", key)
    return Reading(generator, repr(state).encode(), repr(state.get("inc", state.get("key"))).encode())


def drawn_from(before: Reading) -> bool:
    """Whether somebody drew from it since: its state is another, and goes on from what it was."""
    now = _read(before.generator)
    if now.state == before.state or now.seed != before.seed:
        return False
    return before.twister is None or now.twister == before.twister or _goes_on(before.twister, now.twister)


def _goes_on(before: array[int], now: array[int] | None) -> bool:
    """Whether one state of a Mersenne Twister comes after another.

    The first word that either gives of a new state is looked for among those that the earlier one is going to give.
    """
    if now is None:
        return False
    later = random.Random()
    later.setstate((3, (*now, 0), None))
    wanted, stream = later.getrandbits(32), _Words(before)
    return any(wanted in stream.firsts(_AT_A_TIME) for _ in range(_TWISTS // _AT_A_TIME))


class _Words:
    """What a copy of a Mersenne Twister gives from its next state on. NumPy's is thirty times as fast as Python's."""

    def __init__(self, state: array[int]) -> None:
        numpy = sys.modules.get("numpy.random")
        self.fast = numpy.MT19937(0) if numpy is not None else None
        self.slow = random.Random()
        if self.fast is not None:
            key = sys.modules["numpy"].frombuffer(state.tobytes(), dtype="uint32")
            self.fast.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": _WORDS}}
        else:
            self.slow.setstate((3, (*state, _WORDS), None))

    def firsts(self, states: int) -> list[int]:
        """The first word of each of the next so many states."""
        count = _WORDS * states
        if self.fast is not None:
            return [int(word) for word in self.fast.random_raw(count)[::_WORDS]]
        words = array("I")
        words.frombytes(self.slow.getrandbits(32 * count).to_bytes(4 * count, sys.byteorder))
        return list(words[::_WORDS])


def digest(states: Iterable[bytes]) -> int:
    """64 bits; 0 of nothing."""
    together = b"".join(states)
    return int.from_bytes(hashlib.blake2b(together, digest_size=8).digest(), "little") if together else 0
