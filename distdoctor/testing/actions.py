"""What the ranks of a simulated job are to do, one action after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Survivors = Literal["killed", "fail", "time out", "left"]


@dataclass(frozen=True)
class Action:
    """One thing that one rank does. `kind` names the method of `simulation._Stage` that plays it: `call`, `step`, `kill`, ..."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Action:
        return replace(self, fields={**self.fields, **changes})


class Programs:
    """The programs of all ranks, and what the job is."""

    def __init__(self, ranks: int) -> None:
        self.world_size = ranks
        self.programs: dict[int, list[Action]] = {rank: [] for rank in range(ranks)}
        self.groups: dict[str, tuple[tuple[int, ...], str]] = {"0": (tuple(range(ranks)), "gloo")}
        self.texts: dict[str, str] = {}
        self.hosts: dict[int, str] = {}
        self.silent: set[int] = set()
        self.argv: tuple[str, ...] = ("train.py",)
