"""What `@pytest.mark.distdoctor(...)` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pytest

from distdoctor.errors import WrongUse

MARK = "distdoctor"
FORM = f'{MARK}(nproc=2, timeout=60, allow=(), backend="gloo", join=True)'
_KNOWN = ("nproc", "timeout", "allow", "backend", "join")
_SYNONYM = "ranks"  # of nproc
_BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class RankMark:
    """How one test runs: in `nproc` ranks, for `timeout` seconds at most.

    `allow`: codes or slugs of findings that do not fail it, or "all". `join`: the ranks have joined a group of this `backend`;
    otherwise the test calls init_process_group itself, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set for it.
    """

    nproc: int = 2
    timeout: float = 60.0
    allow: frozenset[str] = frozenset()
    backend: str = "gloo"
    join: bool = True

    @property
    def allows_all(self) -> bool:
        return "all" in self.allow


def is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker(MARK) is not None


def mark_of(item: pytest.Item) -> RankMark:
    """The mark of a test; what the function's own leaves open, that of its class or module says.

    WrongUse: an argument is unknown or of no use.
    """
    given = _given(item)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    nproc = parameters.get("nproc", given.get("nproc", RankMark.nproc))
    timeout = given.get("timeout", RankMark.timeout)
    _require(_is_count(nproc), f"nproc={nproc!r}", "a number of ranks from 1 on, or a list of such numbers")
    _require(isinstance(timeout, int | float) and timeout > 0, f"timeout={timeout!r}", "a number of seconds above 0")
    allow = given.get("allow", ())
    allow = (allow,) if isinstance(allow, str) else allow
    is_list = isinstance(allow, list | tuple | set | frozenset) and all(isinstance(word, str) for word in allow)
    _require(is_list, f"allow={allow!r}", 'codes or slugs of findings, as in allow=("DD301",)')
    _require_checks({word for word in allow if word.strip().lower() != "all"})
    backend, join = given.get("backend", RankMark.backend), given.get("join", True)
    _require(backend in _BACKENDS, f"backend={backend!r}", " or ".join(f'"{one}"' for one in _BACKENDS))
    _require(isinstance(join, bool), f"join={join!r}", "True or False")
    return RankMark(nproc, float(timeout), frozenset(allow), backend, join)


def counts_of(item: pytest.Item) -> list[int]:
    """The numbers of ranks that a list asks for, [] where nproc is no list."""
    try:
        nproc = _given(item).get("nproc")
    except WrongUse:  # told when the test is to run
        return []
    return list(nproc) if isinstance(nproc, list | tuple) and all(map(_is_count, nproc)) else []


def _given(item: pytest.Item) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for mark in reversed([*item.iter_markers(MARK)]):
        given |= _named(mark)
    return given


def _named(mark: pytest.Mark) -> dict[str, Any]:
    named = dict(mark.kwargs)
    if _SYNONYM in named:
        named = {"nproc" if name == _SYNONYM else name: value for name, value in named.items()}
    for name in named:
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            raise WrongUse(
                f"@pytest.mark.{MARK} has no argument {name}",
                way_out=f"Did you mean {near[0]}?" if near else f"It takes {FORM}.",
            )
    if len(mark.args) > 1 or (mark.args and "nproc" in named):
        raise WrongUse(f"@pytest.mark.{MARK}{mark.args} says too much without a name", way_out=f"It takes {FORM}.")
    return {"nproc": mark.args[0], **named} if mark.args else named


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require_checks(names: set[str]) -> None:
    """WrongUse: a name that is no check's would allow nothing, in silence."""
    if names:
        from distdoctor.testing.assertions import require_known_checks

        require_known_checks("allow", names)


def _require(holds: bool, given: str, wanted: str) -> None:
    if not holds:
        raise WrongUse(f"@pytest.mark.{MARK}({given}) cannot be", way_out=f"It takes {wanted}.")
