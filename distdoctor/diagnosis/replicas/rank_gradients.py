"""The gradients stream of one rank: its tensors, what every optimizer step found and left behind, and the digests of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine, no_rows
from distdoctor.recording.trace.events import Kind
from distdoctor.recording.trace.layout import DTYPES, TensorFlag, UpdateFlag, ranks_of

NO_END = 1 << 32


@dataclass(frozen=True)
class TensorInfo:
    """One parameter of one optimizer on one rank. `agree` are the ranks that should hold the same bits, () when not known."""

    seq: int
    name: str
    shape: str
    dtype: str
    owner: str
    numel: int
    optimizer: int
    index: int
    agree: tuple[int, ...]
    grad_agree: tuple[int, ...]
    flags: TensorFlag


@dataclass(frozen=True)
class Update:
    """One step of one optimizer on one rank, for the tensors that `agree` should agree on. Fields as in `layout.UPDATE`."""

    rank: int
    step: int
    optimizer: int
    agree: tuple[int, ...]
    at_ns: int  # wall clock
    site: SourceLine
    loss_site: SourceLine
    roots: str
    flags: UpdateFlag
    row: Any = field(repr=False)

    @property
    def digested(self) -> bool:
        return bool(self.flags & UpdateFlag.DIGESTED)

    def number(self, name: str) -> int:
        return int(self.row[name])

    def value(self, name: str) -> float:
        return float(self.row[name])


class RankGradients:
    """The stream of one rank, up to the step `until` which every rank has made with inputs of its own."""

    def __init__(self, log: RankTrace, until: int = NO_END) -> None:
        self.rank, self.log, self.until = log.rank, log, until
        self._names: dict[tuple[int, bytes], tuple[tuple[str, ...], Any]] = {}
        self.tensors = {int(row["seq"]): self._tensor(row) for row in log.rows("tensors")}
        self.updates = [self._update(row) for row in log.rows("updates") if int(row["step"]) <= until]

    def _tensor(self, row: Any) -> TensorInfo:
        text = self.log.text
        return TensorInfo(
            seq=int(row["seq"]),
            name=text(int(row["name"])) or f"parameter {int(row['index'])}",
            shape=text(int(row["shape"])),
            dtype=DTYPES[int(row["dtype"])] if int(row["dtype"]) < len(DTYPES) else "",
            owner=text(int(row["owner"])),
            numel=int(row["numel"]),
            optimizer=int(row["optimizer"]),
            index=int(row["index"]),
            agree=ranks_of(text(int(row["agree"]))),
            grad_agree=ranks_of(text(int(row["grad_agree"]))),
            flags=TensorFlag(int(row["flags"])),
        )

    def _update(self, row: Any) -> Update:
        log = self.log
        return Update(
            rank=self.rank,
            step=int(row["step"]),
            optimizer=int(row["optimizer"]),
            agree=ranks_of(log.text(int(row["agree"]))),
            at_ns=int(row["at_ns"]) + log.monotonic_to_wall_ns,
            site=log.site(row["site"]),
            loss_site=log.site(row["loss_site"]),
            roots=log.text(int(row["roots"])),
            flags=UpdateFlag(int(row["flags"])),
            row=row,
        )

    @cached_property
    def _digests(self) -> dict[int, Any]:
        """step -> the rows of its tensors."""
        rows = self.log.rows("digests")
        rows = rows[rows["step"] <= self.until]
        steps = rows["step"]
        return {int(step): rows[steps == step] for step in np.unique(steps)}

    def held(self, step: int, optimizer: int) -> tuple[tuple[str, ...], Any]:
        """The names of its tensors, and for each of them its row of `layout.DIGEST`, of those that are still kept."""
        rows = self._digests.get(step)
        if rows is None:
            return (), no_rows("digests")
        known = (optimizer, rows["tensor"].tobytes())
        if known not in self._names:  # steps have the same tensors in the same order
            infos = [self.tensors.get(int(seq)) for seq in rows["tensor"]]
            mine = [i for i, info in enumerate(infos) if info is not None and info.optimizer == optimizer]
            self._names[known] = tuple(infos[i].name for i in mine), np.array(mine, dtype=np.intp)  # type: ignore[union-attr]
        names, mine_at = self._names[known]
        return names, rows if len(names) == len(rows) else rows[mine_at]

    def digests(self, step: int, optimizer: int) -> dict[str, Any]:
        """name -> row of `layout.DIGEST`, of those that are still kept."""
        return dict(zip(*self.held(step, optimizer), strict=True))

    def rows_of(self, seq: int) -> Iterator[tuple[int, Any]]:
        """(step, row) of one tensor, in order."""
        for step, rows in self._digests.items():
            for row in rows[rows["tensor"] == seq]:
                yield step, row

    def info(self, name: str, optimizer: int) -> TensorInfo | None:
        """The newest record of a parameter by its name."""
        known = [t for t in self.tensors.values() if t.name == name and t.optimizer == optimizer]
        return known[-1] if known else None

    def events(self, kind: type[Kind]) -> Iterator[Kind]:
        """The events of one kind; `at_ns` is on the wall clock."""
        for event in self.log.noted(kind):
            yield replace(event, at_ns=event.at_ns + self.log.monotonic_to_wall_ns)
