"""The gradients stream of one rank: its tensors, what every optimizer step found and left behind, and the digests of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine, no_rows
from distdoctor.recording.trace.events import Kind
from distdoctor.recording.trace.layout import DTYPES, UPDATE, TensorFlag, UpdateFlag, ranks_of

NO_END = 1 << 32
_AT = {name: at for at, (name, _) in enumerate(UPDATE.fields)}
_FLAGS, _DIGESTED, _STATE = _AT["flags"], int(UpdateFlag.DIGESTED), int(UpdateFlag.STATE)


def same_ranks(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Sets of ranks that were read from one text are one object. To compare them number by number for each of ten thousand ranks
    would be a hundred million comparisons a tensor."""
    return one is other or one == other


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
    row: tuple[Any, ...] = field(repr=False)

    @property
    def flags(self) -> UpdateFlag:
        return UpdateFlag(self.row[_FLAGS])

    @property
    def digested(self) -> bool:
        return bool(self.row[_FLAGS] & _DIGESTED)

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state was digested as well."""
        return bool(self.row[_FLAGS] & _STATE)

    def number(self, name: str) -> int:
        return int(self.row[_AT[name]])

    def value(self, name: str) -> float:
        return float(self.row[_AT[name]])


Tensors = dict[int, TensorInfo]


def _short(*columns: Any) -> bytes:
    digest = blake2b(digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


class RankGradients:
    """The stream of one rank, up to the step `until` which every rank has made with inputs of its own. `alike`: the tensors of
    ranks that were read before; a rank that describes its own in the same words shares them."""

    def __init__(
        self, log: RankTrace, until: int = NO_END, alike: dict[tuple[bytes, tuple[str, ...]], Tensors] | None = None
    ) -> None:
        self.rank, self.log, self.until = log.rank, log, until
        self._names: dict[tuple[int, bytes], tuple[tuple[str, ...], Any]] = {}
        rows = log.rows("tensors")
        own = rows.tobytes(), log.texts
        known = alike.get(own) if alike is not None else None
        self.tensors: Tensors = {int(row["seq"]): self._tensor(row) for row in rows} if known is None else known
        if alike is not None:
            alike[own] = self.tensors
        updates = log.rows("updates")
        self.updates = [self._update(row) for row in updates[updates["step"] <= until].tolist()]

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

    def _update(self, row: tuple[Any, ...]) -> Update:
        log = self.log
        return Update(
            rank=self.rank,
            step=row[_AT["step"]],
            optimizer=row[_AT["optimizer"]],
            agree=ranks_of(log.text(row[_AT["agree"]])),
            at_ns=row[_AT["at_ns"]] + log.monotonic_to_wall_ns,
            site=log.site(row[_AT["site"]]),
            loss_site=log.site(row[_AT["loss_site"]]),
            roots=log.text(row[_AT["roots"]]),
            row=row,
        )

    @cached_property
    def _rows(self) -> Any:
        rows = self.log.rows("digests")
        return rows[rows["step"] <= self.until] if len(rows) and rows["step"].max() > self.until else rows

    @cached_property
    def _digests(self) -> dict[int, Any]:
        """step -> the rows of its tensors."""
        steps = self._rows["step"]
        return {int(step): self._rows[steps == step] for step in np.unique(steps)}

    @cached_property
    def _frame(self) -> bytes:
        """Of which tensors and steps there are digests, in short."""
        rows = self._rows
        return _short(*(rows[name] for name in ("step", "tensor", "flags")))

    def content(self, column: str) -> tuple[int, bytes, bytes]:
        """What ranks have alike whose digests of one kind are equal in every step that is still kept."""
        return id(self.tensors), self._frame, _short(self._rows[column])

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
