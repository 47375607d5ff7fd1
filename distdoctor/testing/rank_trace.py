"""The log of one rank, row by row, as the probe writes it and the trace reader reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine
from distdoctor.recording.trace.events import NewGroupDone, TraceEvent, encode
from distdoctor.recording.trace.layout import (
    BLOCK,
    BLOCK_INDICES,
    CALL,
    DTYPES,
    EVENT,
    GROUP,
    PASS,
    POINT_TO_POINT,
    STEP,
    TIME,
    WORKER,
    CallFlag,
    Op,
    PassFlag,
    Record,
    ReduceOp,
    Span,
    chain_text,
    digest_of,
    extend,
    ranks_text,
    signature_of,
    site_text,
    source_digest,
    source_text,
)
from distdoctor.recording.trace.reader import Rows, dtype_of

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
START_NS = 1_000 * SECOND  # a machine that has been up for a while: no time is 0
MASK = (1 << 64) - 1
WALL_NS = 1_700_000_000 * SECOND
ALWAYS = (CALL, GROUP, STEP, EVENT, PASS, BLOCK)
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def site_of(words: str | SourceLine) -> str:
    """The text that a trace holds for a line: `train.py:41 train_step` becomes `/job/train.py\\0 41\\0 train_step`.

    Relative paths are put below `/job`, because the probe writes absolute ones.
    """
    if isinstance(words, SourceLine):
        return site_text(words.path, words.line, words.function) if words else ""
    if not words:
        return ""
    place, _, function = words.partition(" ")
    path, _, line = place.rpartition(":")
    return site_text(path if path.startswith(("/", "<")) else f"/job/{path}", int(line), function or "main")


def noting_sources(logs: Mapping[int, RankTrace], sources: Mapping[str, str]) -> dict[int, RankTrace]:
    """The logs with what every rank notes about the files that it runs: their digests."""
    noted = tuple(source_text(path, source_digest(text.encode())) for path, text in sources.items())
    return {rank: replace(log, texts=(*log.texts, *noted)) for rank, log in logs.items()}


def shape_text(shape: Sequence[int] | str) -> str:
    """`[64, 3]`, as the probe writes it; a text passes as it is."""
    return shape if isinstance(shape, str) else str(list(shape))


_BYTES = dict.fromkeys(("bool", "uint8", "int8"), 1) | dict.fromkeys(("bfloat16", "float16", "int16"), 2) | {"int64": 8}


class TraceBuilder:
    """Grows the log of one rank. Times are monotonic nanoseconds; what is not given moves on by a millisecond."""

    def __init__(self, rank: int, *, world_size: int = 0, host: str = "node0", attempt: int = 0, pid: int = 0) -> None:
        self.rank, self.world_size, self.host, self.attempt = rank, world_size, host, attempt
        self.pid = pid or 1000 + rank
        self.now = START_NS
        self.monotonic_to_wall_ns = WALL_NS - START_NS
        self.lost: dict[str, int] = {}
        self.environment: dict[str, Any] = {}
        self._texts: dict[str, int] = {"": 0}
        self._rows: dict[str, list[dict[str, Any]]] = {r.name: [] for r in (*ALWAYS, TIME, WORKER)}
        self._groups: dict[str, dict[str, Any]] = {}
        self._pairs: dict[tuple[str, int, bool], int] = {}
        self._step = 0

    def text(self, words: str) -> int:
        """The number of a text."""
        return self._texts.setdefault(words, len(self._texts))

    def _append(self, record: Record, **fields: Any) -> dict[str, Any]:
        rows = self._rows[record.name]
        row: dict[str, Any] = dict.fromkeys(record.offsets, 0)
        row.update(fields, seq=len(rows) + 1, end=len(rows) + 1)
        rows.append(row)
        return row

    def at(self, at_ns: int | None) -> int:
        """The moment given, or the next millisecond; later rows continue from there."""
        self.now = self.now + MILLISECOND if at_ns is None else max(self.now, at_ns)
        return self.now if at_ns is None else at_ns

    def group(
        self,
        name: str,
        ranks: Sequence[int],
        *,
        backend: str = "gloo",
        made_at: str | SourceLine = "",
        at_ns: int | None = None,
    ) -> dict[str, Any]:
        """A process group that this rank has made. The name may come again after `init_process_group` came again."""
        row = self._append(
            GROUP,
            key=self.text(name),
            members=self.text(ranks_text(ranks)),
            backend=self.text(backend),
            made_at=self.text(site_of(made_at)),
        )
        self._groups[name] = row
        self._pairs = {pair: n for pair, n in self._pairs.items() if pair[0] != name}
        self.note(NewGroupDone(tuple(ranks), name), at_ns=at_ns)
        return row

    def call(
        self,
        op: str | Op,
        shape: Sequence[int] | str = (),
        *,
        group: str = "0",
        dtype: str = "float32",
        reduce_op: str | ReduceOp | None = None,
        root: int = -1,
        tag: int = 0,
        site: str | SourceLine = "",
        chain: Sequence[tuple[str, Span, str]] = (),
        asynchronous: bool = False,
        native: bool = False,
        flags: int = 0,
        nbytes: int = 0,
        thread: int = 0,
        at_ns: int | None = None,
        returned_ns: int | None = None,
        waited_ns: int = 0,
    ) -> dict[str, Any]:
        """One operation. `chain`: the user's calls that led to it, innermost first.

        `returned_ns` None: it returned at once; 0: it has not returned.
        """
        op = Op[op.upper()] if isinstance(op, str) else op
        flags |= (CallFlag.ASYNC if asynchronous else 0) | (CallFlag.NATIVE if native else 0)
        entered = self.at(at_ns)
        text, words = shape_text(shape), site_of(site)
        number_of_dtype = DTYPES.index(dtype) if text else 0
        reduction = _reduction(op, reduce_op, native)
        signature = signature_of(op, number_of_dtype, text, reduction, root, flags)
        row = self._groups.get(group) or self.group(group, range(self.world_size), at_ns=entered)
        word = chain_text(chain) if chain else words
        number = self._numbered(op, group, root, row, signature, word, entered)
        return self._append(
            CALL,
            entered_ns=entered,
            returned_ns=self.at(None) if returned_ns is None else returned_ns,
            waited_ns=waited_ns,
            number=number,
            nbytes=nbytes or _BYTES.get(dtype, 4) * elements(text),
            signature=signature,
            prefix=row["prefix"],
            site_prefix=digest_of(word) if op in POINT_TO_POINT and word else row["site_prefix"],
            step=self._step,
            group=self.text(group),
            shape=self.text(text),
            site=self.text(words),
            root=root,
            tag=tag,
            op=int(op),
            flags=int(flags),
            reduce_op=int(reduction),
            dtype=number_of_dtype,
            thread=thread,
        )

    def _numbered(
        self, op: Op, group: str, root: int, row: dict[str, Any], signature: int, word: str, entered: int
    ) -> int:
        """The number of a call in its group, or between its pair of ranks; the group's digests go on by it."""
        self.text(word)
        if op in POINT_TO_POINT:
            pair = (group, root, op is Op.SEND)
            self._pairs[pair] = self._pairs.get(pair, 0) + 1
            return self._pairs[pair]
        row["count"] += 1
        row["prefix"] = extend(row["prefix"], signature)
        row["site_prefix"] = extend(row["site_prefix"], digest_of(word) if word else 0)
        row["last_ns"] = entered
        number: int = row["count"]
        return number

    @property
    def last_call(self) -> dict[str, Any]:
        """The row of the newest call, to be changed in place."""
        return self._rows["calls"][-1]

    def unreturned(self) -> None:
        """The newest call has not come back: the backend holds it."""
        self.last_call["returned_ns"] = 0

    def step(
        self, *, at_ns: int | None = None, epoch: int = -1, site: str | SourceLine = "", micro_steps: int = 1
    ) -> dict[str, Any]:
        """One optimizer step."""
        self._step += 1
        words = self.text(site_of(site))
        return self._append(
            STEP, at_ns=self.at(at_ns), step=self._step, epoch=epoch, micro_steps=micro_steps, site=words
        )

    def times(self, **nanoseconds: int) -> dict[str, Any]:
        """Where the time of the step just made went; fields as in `layout.TIME`, the rest is 0."""
        fields = {"at_ns": self.now, "step": self._step, "backwards": 1, "batches": 1, **nanoseconds}
        return self._append(TIME, **fields)

    def note(self, event: TraceEvent, *, site: str | SourceLine = "", at_ns: int | None = None) -> dict[str, Any]:
        """One of the rare things, as the probe writes it."""
        written = encode(event, self.text)
        return self._append(EVENT, at_ns=self.at(at_ns), kind=event.number, site=self.text(site_of(site)), **written)

    def worker(self, pass_seq: int, worker: int, drawn_from: int, **states: int) -> dict[str, Any]:
        """With which random states one worker began; fields as in `layout.WORKER`."""
        return self._append(WORKER, pass_seq=pass_seq, worker=worker, drawn_from=drawn_from, **states)

    def loader_pass(
        self, *, indices: Iterable[int] | None = None, flags: PassFlag | int = 0, **fields: Any
    ) -> dict[str, Any]:
        """One pass over one loader. Fields are those of `layout.PASS`; texts and sites are given as words.

        `indices` are what was drawn, in order; they become blocks, and `drawn` and `batches` follow from them unless given.
        """
        words = {name: self.text(fields.pop(name, "")) for name in ("dataset", "sampler")}
        sites = {n: self.text(site_of(fields.pop(n, ""))) for n in ("loop_site", "made_site", "set_epoch_site")}
        loader = fields.setdefault("loader", 1)
        earlier = sum(row["loader"] == loader for row in self._rows["passes"])
        defaults: dict[str, Any] = {
            "started_ns": self.at(fields.get("started_ns")),
            "ended_ns": self.now,
            "dataset_length": -1,
            "epoch_told": -1,
            "sampler_rank": -1,
            "pass_number": earlier + 1,
            "batch_size": 1,
            "keep_one_in": 1,
        }
        drawn = None if indices is None else np.fromiter(indices, np.uint32)
        if drawn is not None:
            size = max(1, fields.get("batch_size", 1))
            defaults |= {"drawn": len(drawn), "batches": -(-len(drawn) // size)}
        row = self._append(PASS, **(defaults | words | sites | fields), flags=int(flags))
        if drawn is not None:
            self.blocks(row["seq"], drawn)
        return row

    def blocks(self, pass_seq: int, indices: Iterable[int]) -> None:
        """What the pass `pass_seq` drew, as the blocks of `layout.BLOCK`."""
        drawn = np.fromiter(indices, np.uint32)
        for number, first in enumerate(range(0, len(drawn), BLOCK_INDICES)):
            part = drawn[first : first + BLOCK_INDICES]
            padded = np.zeros(BLOCK_INDICES, np.uint32)
            padded[: len(part)] = part
            self._append(BLOCK, pass_seq=pass_seq, block_number=number, count=len(part), indices=padded)

    def build(self, *, keep: Mapping[str, int] | None = None) -> RankTrace:
        """The log. `keep` limits a section to its newest rows, as a ring that has come round does (`{"calls": 100}`)."""
        kept: dict[str, Any] = {}
        lost = dict(self.lost)
        for record in ALWAYS:
            rows = _rows_of(record, self._rows[record.name])
            limit = (keep or {}).get(record.name, len(rows))
            kept[record.name] = rows[max(0, len(rows) - limit) :]
            lost.setdefault(record.name, max(0, len(rows) - limit))
        return RankTrace(
            rank=self.rank,
            texts=tuple(self._texts),
            lost=lost,
            pid=self.pid,
            host=self.host,
            attempt=self.attempt,
            monotonic_to_wall_ns=self.monotonic_to_wall_ns,
            environment=self.environment,
            more={record.name: _rows_of(record, self._rows[record.name]) for record in (TIME, WORKER)},
            **kept,
        )


def _rows_of(record: Record, rows: Sequence[Mapping[str, Any]]) -> Rows:
    made = np.zeros(len(rows), dtype_of(record))
    for name, _ in record.fields:
        for at, row in enumerate(rows):
            made[name][at] = row[name]
    return made


def _reduction(op: Op, asked: str | ReduceOp | None, native: bool) -> ReduceOp:
    if isinstance(asked, str):
        return ReduceOp[asked.upper()]
    if asked is not None:
        return asked
    if not op.word.startswith(_REDUCING):
        return ReduceOp.NONE
    return ReduceOp.UNSEEN if native else ReduceOp.SUM


def elements(shape: str) -> int:
    """How many elements a shape text stands for; 1 for what has no sizes."""
    count = 1
    for word in shape.strip("[]").split(","):
        count *= int(word) if word.strip().isdigit() else 1
    return count


def build_log(
    rank: int,
    *,
    calls: Iterable[Mapping[str, Any]] = (),
    passes: Iterable[Mapping[str, Any]] = (),
    steps: int = 0,
    groups: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = (),
    world_size: int = 0,
    **about: Any,
) -> RankTrace:
    """The log of one rank in one go. Each mapping is the keyword arguments of the method of `TraceBuilder` of that name."""
    log = TraceBuilder(rank, world_size=world_size, **about)
    for group in groups:
        log.group(**group)
    for event in events:
        log.note(**event)
    for row in calls:
        log.call(**row)
    for row in passes:
        log.loader_pass(**row)
    for _ in range(steps):
        log.step()
    return log.build()
