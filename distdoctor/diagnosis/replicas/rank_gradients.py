"""The gradients stream of one rank: its tensors, what every optimizer step found and left behind, and the digests of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine, no_rows
from distdoctor.recording.trace.events import Kind
from distdoctor.recording.trace.layout import DTYPES, UPDATE, TensorFlag, UpdateFlag, ranks_of

NO_END = 1 << 32
_OF_ONE_RANK = ("at_ns", "loss", "inputs")
_SHARED = [name for name, _ in UPDATE.fields if name not in _OF_ONE_RANK]
_AT = {name: at for at, name in enumerate(_SHARED)}
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


@dataclass(frozen=True, slots=True)
class Update:
    """One step of one optimizer on one rank, for the tensors that `agree` should agree on. Fields as in `layout.UPDATE`."""

    rank: int
    step: int
    optimizer: int
    agree: tuple[int, ...]
    at_ns: int  # wall clock
    loss: float
    inputs: int
    row: tuple[Any, ...] = field(repr=False)  # the rest, which replicas share
    log: RankTrace = field(repr=False, compare=False)

    @property
    def site(self) -> SourceLine:
        return self.log.site(self.number("site"))

    @property
    def loss_site(self) -> SourceLine:
        return self.log.site(self.number("loss_site"))

    @property
    def roots(self) -> str:
        return self.log.text(self.number("roots"))

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
        return self.loss if name == "loss" else float(self.row[_AT[name]])


Tensors = dict[int, TensorInfo]


def _short(*columns: Any) -> bytes:
    digest = blake2b(digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


class SharedTensors:
    """The tensors that ranks describe in the same words, and the names of those of which digests are kept."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self._names: dict[tuple[int, bytes], tuple[tuple[str, ...], Any]] = {}

    def names(self, optimizer: int, digested: Any) -> tuple[tuple[str, ...], Any]:
        """Of the optimizer's tensors among these, by their `seq`, the names, and where they are."""
        known = (optimizer, digested.tobytes())
        if known not in self._names:  # steps and ranks have the same tensors in the same order
            infos = [self.tensors.get(int(seq)) for seq in digested]
            mine = [i for i, info in enumerate(infos) if info is not None and info.optimizer == optimizer]
            self._names[known] = tuple(infos[i].name for i in mine), np.array(mine, dtype=np.intp)  # type: ignore[union-attr]
        return self._names[known]

    @cached_property
    def by_name(self) -> dict[tuple[str, int], TensorInfo]:
        """The newest of each name and optimizer."""
        return {(tensor.name, tensor.optimizer): tensor for tensor in self.tensors.values()}


class Alike:
    """What ranks that were read before have as well: tensors that are described in the same words, and updates that are equal."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[bytes, tuple[str, ...]], SharedTensors] = {}
        self._rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def tensors(self, rows: Any, texts: tuple[str, ...], make: Callable[[], Tensors]) -> SharedTensors:
        """Those of a rank that describes them so."""
        own = rows.tobytes(), texts
        if own not in self._tensors:
            self._tensors[own] = SharedTensors(make())
        return self._tensors[own]

    def row(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """One that is equal."""
        return self._rows.setdefault(row, row)


class RankGradients:
    """The stream of one rank, up to the step `until` which every rank has made with inputs of its own, with what is `alike` on
    ranks that were read before."""

    def __init__(self, log: RankTrace, until: int = NO_END, alike: Alike | None = None) -> None:
        self.rank, self.log, self.until = log.rank, log, until
        rows, alike = log.rows("tensors"), alike or Alike()
        self._shared = alike.tensors(rows, log.texts, lambda: {int(row["seq"]): self._tensor(row) for row in rows})
        self.tensors = self._shared.tensors
        self.updates = list(self._updates(alike))

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

    def _updates(self, alike: Alike) -> Iterator[Update]:
        rows, log = self.log.rows("updates"), self.log
        shared = zip(*(rows[name].tolist() for name in _SHARED), strict=True)
        own = zip(*(rows[name].tolist() for name in _OF_ONE_RANK), strict=True)
        for row, (at_ns, loss, inputs) in zip(shared, own, strict=True):
            step, agree = row[_AT["step"]], ranks_of(log.text(row[_AT["agree"]]))
            if step <= self.until:
                wall_ns = at_ns + log.monotonic_to_wall_ns
                yield Update(self.rank, step, row[_AT["optimizer"]], agree, wall_ns, loss, inputs, alike.row(row), log)

    @property
    def _rows(self) -> Any:
        rows = self.log.rows("digests")
        return rows[rows["step"] <= self.until] if len(rows) and rows["step"].max() > self.until else rows

    @cached_property
    def _places(self) -> dict[int, Any]:
        """step -> which of the rows are those of its tensors."""
        steps = self._rows["step"]
        begins = np.flatnonzero(np.diff(steps, prepend=-1, append=-1))
        if (np.diff(steps.astype(np.int64)) < 0).any():
            return {int(step): np.flatnonzero(steps == step) for step in np.unique(steps)}
        return {int(steps[begin]): slice(begin, end) for begin, end in pairwise(begins.tolist())}

    @property
    def _frame(self) -> bytes:
        """Of which tensors and steps there are digests, in short."""
        rows = self._rows
        return _short(*(rows[name] for name in ("step", "tensor", "flags")))

    def content(self, column: str) -> tuple[int, bytes, bytes]:
        """What ranks have alike whose digests of one kind are equal in every step that is still kept."""
        return id(self.tensors), self._frame, _short(self._rows[column])

    def held(self, step: int, optimizer: int) -> tuple[tuple[str, ...], Any]:
        """The names of its tensors, and for each of them its row of `layout.DIGEST`, of those that are still kept."""
        if step not in self._places:
            return (), no_rows("digests")
        rows = self._rows[self._places[step]]
        names, mine_at = self._shared.names(optimizer, rows["tensor"])
        return names, rows if len(names) == len(rows) else rows[mine_at]

    def digests(self, step: int, optimizer: int) -> dict[str, Any]:
        """name -> row of `layout.DIGEST`, of those that are still kept."""
        return dict(zip(*self.held(step, optimizer), strict=True))

    def rows_of(self, seq: int) -> Iterator[tuple[int, Any]]:
        """(step, row) of one tensor, in order."""
        rows = self._rows
        for row in rows[rows["tensor"] == seq]:
            yield int(row["step"]), row

    def info(self, name: str, optimizer: int) -> TensorInfo | None:
        """The newest record of a parameter by its name."""
        return self._shared.by_name.get((name, optimizer))

    def events(self, kind: type[Kind]) -> Iterator[Kind]:
        """The events of one kind; `at_ns` is on the wall clock."""
        for event in self.log.noted(kind):
            yield replace(event, at_ns=event.at_ns + self.log.monotonic_to_wall_ns)
