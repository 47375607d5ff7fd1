"""Recordings of what optimizers found and left behind, made by hand: for tests of checks on gradients and parameters.

job = trained_job(ranks=3)
job.step().step(grads={2: 1})            # in the second step rank 2 has gradients of its own
sick = job.recording()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from distdoctor.recording.recording import Job, RankTrace, Recording
from distdoctor.recording.trace.events import TraceEvent, Wrapped
from distdoctor.recording.trace.layout import (
    DIGEST,
    RECORDS,
    SPOT,
    TENSOR,
    UPDATE,
    DigestFlag,
    UpdateFlag,
    digest_of,
    extend,
)
from distdoctor.recording.trace.reader import dtype_of
from distdoctor.testing.rank_trace import TraceBuilder, noting_sources, site_of

STEP_LINE, LOSS_LINE, WRAP_LINE = "train.py:33 train", "train.py:31 train", "train.py:14 main"
PARAMETERS = {"body.weight": "[64, 20]", "body.bias": "[64]", "head.weight": "[10, 64]"}
_UPDATE_DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "norm": 1.0,
    "loss": 2.3,
    "backwards": 1,
    "synced": 1,
    "hyper": 7,
    "flags": UpdateFlag.DIGESTED | UpdateFlag.STATE,
}
_TEXTS = {"site": STEP_LINE, "loss_site": LOSS_LINE, "roots": "NllLoss mean"}


class TrainedJob:
    """The ranks of one job, and what their optimizers did, side by side."""

    def __init__(
        self,
        ranks: int,
        *,
        wrapped: bool = True,
        agree: Mapping[int, Sequence[int]] | Sequence[int] | None = None,
        parameters: Mapping[str, str] = PARAMETERS,
        flags: Mapping[str, int] | None = None,
        buffers: Mapping[str, int] | None = None,
        beside: bool = False,
        finds_unused: bool = False,
        owners: Mapping[str, str] | None = None,
        orders: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """`orders`: the order in which the optimizer of a rank holds the parameters, where it is another one. What is not wrapped
        is then reduced in that order, whatever it belongs to.

        `agree` are the ranks that should hold the same (all, by default): () when nobody knows.

        `flags` of tensors and the classes that own them (`owners`) by name; `buffers` are names with their flags, held `beside`
        the model or by it.
        """
        self.world_size = ranks
        self.logs = [TraceBuilder(rank, world_size=ranks) for rank in range(ranks)]
        self.rows: list[dict[str, list[dict[str, Any]]]] = [
            {record.name: [] for record in (TENSOR, UPDATE, DIGEST, SPOT)} for _ in range(ranks)
        ]
        self.steps = 0
        self.names = list(parameters)
        self.buffers = dict(buffers or {})
        self.owners = dict(owners or {})
        self.orders, self.wrapped = dict(orders or {}), wrapped
        self._norms: dict[int, float] = {}  # of each gradient of a rank, where it is not the usual one
        self._frozen = False
        self._left: dict[tuple[int, str], int] = {}  # what the last step of a rank left behind
        everybody = tuple(range(ranks))
        for rank, log in enumerate(self.logs):
            members = agree[rank] if isinstance(agree, Mapping) else everybody if agree is None else agree
            self.members = ",".join(map(str, members))
            if wrapped and members:
                log.note(Wrapped(tuple(members), searches_unused=bool(finds_unused)), site=WRAP_LINE)
            for index, name in enumerate(self.orders.get(rank, parameters)):
                self._tensor(rank, index, name, parameters[name], (flags or {}).get(name, 0))
            for index, (name, own) in enumerate(self.buffers.items()):
                self._tensor(rank, index, name, "[4]", own, optimizer=not beside)

    def _tensor(self, rank: int, index: int, name: str, shape: str, flags: int, *, optimizer: int = 1) -> None:
        text = self.logs[rank].text
        owner = self.owners.get(name, "Linear")
        self._append(
            rank,
            "tensors",
            name=text(name),
            shape=text(shape),
            agree=text(self.members),
            grad_agree=text(self.members),
            owner=text(owner),
            numel=math.prod(int(word) for word in shape.strip("[]").split(",")),
            optimizer=int(optimizer),
            dtype=1,
            flags=flags,
            index=index,
        )

    def initial(self, params: Mapping[int, int] | None = None, *, names: Sequence[str] | None = None) -> Self:
        """The parameters before the first step; `params` says which ranks hold others."""
        fields = {"flags": UpdateFlag.DIGESTED, "backwards": 0, "synced": 0, "grads": 0, "state": 0, "loss": math.nan}
        return self._look(0, {"param": params or {}}, names, fields)

    def step(
        self,
        *,
        grads: Mapping[int, int] | None = None,
        before: Mapping[int, int] | None = None,
        params: Mapping[int, int] | None = None,
        state: Mapping[int, int] | None = None,
        sums: Mapping[int, int] | None = None,
        buffers: Mapping[int, int] | None = None,
        names: Sequence[str] | None = None,
        skip: int = 0,
        non_finite: Mapping[int, Sequence[str]] | None = None,
        none: Mapping[int, Sequence[str]] | None = None,
        only: Sequence[int] | None = None,
        norms: Mapping[int, float] | None = None,
        frozen: bool = False,
        **fields: Any,
    ) -> Self:
        """One optimizer step that was looked at, after `skip` that were not.

        `grads={1: 5}`: rank 1 holds other bits than most, variant 5, of the tensors in `names` (all). `sums` are added to the
        sums of words, `norms={1: 0.3}` are those of its gradients; `none={1: ["head.weight"]}`: rank 1 has no such gradient.
        `frozen`: the step leaves every parameter as it was.
        Any field of `layout.UPDATE` can be given, for all ranks or as a dict by rank; sites and roots as words.
        """
        self.steps += 1 + skip
        odd = {
            "grad": grads or {},
            "before": before or {},
            "param": params or {},
            "state": state or {},
            "sum": sums or {},
            "buffer": buffers or {},
        }
        self._norms, self._frozen = dict(norms or {}), frozen
        return self._look(self.steps, odd, names, fields, non_finite or {}, only, none or {})

    def _look(
        self,
        step: int,
        odd: Mapping[str, Mapping[int, int]],
        names: Sequence[str] | None,
        fields: Mapping[str, Any],
        non_finite: Mapping[int, Sequence[str]] | None = None,
        only: Sequence[int] | None = None,
        none: Mapping[int, Sequence[str]] | None = None,
    ) -> Self:
        for rank in range(self.world_size) if only is None else only:
            own = {key: value.get(rank) if isinstance(value, dict) else value for key, value in fields.items()}
            own = {key: value for key, value in own.items() if value is not None}
            broken = set((non_finite or {}).get(rank, ()))
            lanes = dict.fromkeys(("grad", "param", "state"), 0)
            for number, name in enumerate(self.orders.get(rank, self.names)):
                chosen = names is None or name in names
                reduced_as = name if self.wrapped else self.names[number]
                after = name if step == 0 or name == reduced_as else f"{name} by {reduced_as}"
                row = {
                    key: digest_of(f"{key} {of} {step} {odd.get(key, {}).get(rank, 0) if chosen else 0}")
                    for key, of in (("grad", reduced_as), ("before", name), ("param", after), ("state", after))
                }
                if step == 0:
                    row |= {"grad": 0, "before": 0, "state": 0}
                elif not (chosen and rank in odd.get("before", {})):
                    row["before"] = self._left.get((rank, name), digest_of(name))
                if self._frozen and step:
                    row["param"] = row["before"]
                if name in (none or {}).get(rank, ()):
                    row["grad"] = 0
                self._left[rank, name] = row["param"]
                plus = odd.get("sum", {}).get(rank, 0) if chosen else 0
                sums = dict.fromkeys(("grad_sum", "param_sum"), (1000 + number + plus) % (1 << 64))
                mark = DigestFlag.NON_FINITE if name in broken else 0
                norm = math.inf if name in broken else self._norms.get(rank, 0.5)
                self._append(rank, "digests", **row, **sums, step=step, tensor=number + 1, norm=norm, flags=mark)
                lanes = {key: extend(value, row[key]) for key, value in lanes.items()}
            for number, name in enumerate(self.buffers if step else ()):
                value = digest_of(f"buffer {name} {step} {odd.get('buffer', {}).get(rank, 0)}")
                usual = digest_of(f"buffer {name} {step} 0")  # what a copy was taken of
                at = len(self.names) + number + 1
                self._append(rank, "digests", param=value, before=usual, step=step, tensor=at)
            self._update(rank, step, lanes, own, len(broken))
        return self

    def _update(self, rank: int, step: int, lanes: Mapping[str, int], own: dict[str, Any], broken: int) -> None:
        log = self.logs[rank]
        words = {key: log.text(own.pop(key, usual) if key == "roots" else site_of(own.pop(key, usual)))
                 for key, usual in _TEXTS.items()}  # fmt: skip
        known = {
            **_UPDATE_DEFAULTS,
            "grads": lanes["grad"],
            "params": lanes["param"],
            "state": lanes["state"],
            "step": step,
            "at_ns": log.at(None),
            "tensors": len(self.names),
            "held": len(self.names),
            "non_finite": broken,
            "agree": log.text(self.members),
            "optimizer": 1,
            **words,
            **own,
        }
        self._append(rank, "updates", **known)
        log.step(site=STEP_LINE, micro_steps=int(known["backwards"]))

    def collective(self, op: str, shape: Sequence[int] = (), **about: Any) -> Self:
        """One collective of every rank, since the step before."""
        for log in self.logs:
            log.call(op, shape, **about)
        return self

    def note(self, event: TraceEvent, *, only: Sequence[int] | None = None, site: str = "") -> Self:
        """One of the rare things, on every rank or on `only`."""
        for rank in range(self.world_size) if only is None else only:
            self.logs[rank].note(event, site=site)
        return self

    def spot(self, step: int, *, tensor: int = 3, own: Mapping[int, Sequence[float]],
             used: Sequence[float] | Mapping[int, Sequence[float]]) -> Self:  # fmt: skip
        """A few elements of one gradient: what each rank computed, and what all of them (or each) used."""
        for rank, values in own.items():
            fields = {f"own_{i}": value for i, value in enumerate(values)}
            fields |= {f"used_{i}": value for i, value in enumerate(used[rank] if isinstance(used, Mapping) else used)}
            self._append(rank, "spots", step=step, tensor=tensor, **fields)
        return self

    def _append(self, rank: int, section: str, /, **fields: Any) -> None:
        rows = self.rows[rank][section]
        row: dict[str, Any] = dict.fromkeys(RECORDS[section].offsets, 0)
        rows.append({**row, **fields, "seq": len(rows) + 1, "end": len(rows) + 1})

    def recording(self, *, sources: Mapping[str, str] | None = None, running: bool = False) -> Recording:
        """What would have been read of this job."""
        logs = {log.rank: self._log(log) for log in self.logs}
        job = Job(argv=("train.py",), world_size=self.world_size, running=running)
        return Recording(job, noting_sources(logs, sources or {}), sources=sources or {})

    def _log(self, log: TraceBuilder) -> RankTrace:
        built = log.build()
        more = dict(built.more)
        for name, rows in self.rows[log.rank].items():
            made = np.zeros(len(rows), dtype_of(RECORDS[name]))
            for at, row in enumerate(rows):
                for field, value in row.items():
                    made[field][at] = value
            more[name] = made
        return replace(built, more=more)


def trained_job(ranks: int = 2, **about: Any) -> TrainedJob:
    """A job of `ranks` replicas behind DistributedDataParallel that has not trained yet."""
    return TrainedJob(ranks, **about)
