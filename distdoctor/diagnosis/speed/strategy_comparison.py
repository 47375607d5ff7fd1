"""Ways of training side by side: what each of them cost on this machine, and whether it trained as one process does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import CallFlag, Op

BASELINE = "single"
WARM_UP = 3  # steps that are not timed: first allocations, bucket order, lazy initialisation
COMPARED = 6  # losses from the first; later ones drift apart by rounding alone
# Eight times what the order of additions does to the losses of the reference training in six steps (tests/strategies holds
# that to below 1e-5), and four spacings of the 16-bit types.
ALLOWED = {"fp32": 8e-5, "bf16": 4 * 2.0**-8, "fp16": 4 * 2.0**-11}
_RECEIVES = (int(Op.RECV), int(Op.RECV_ANY))
_UNBLOCKING = int(CallFlag.ASYNC | CallFlag.NATIVE)


@dataclass(frozen=True)
class StrategyRow:
    """One strategy. `failed` says why there are no numbers. Sizes are bytes, times seconds; what could not be measured is None.

    `step` is the slowest rank's; `peaks` are by rank, `grown` what of them the training itself took; `sent` is the payload of one
    step, of the rank that sends most; `waiting` the share of a step spent in communication that nothing hides, mean over ranks;
    `apart` the largest relative difference of the first losses to those of `single`, `allowed` what rounding explains.
    """

    strategy: str
    ranks: int
    failed: str = ""
    precision: str = "fp32"
    device: str = "cpu"
    threads: int = 1
    samples_per_second: float = 0.0
    step: RobustMedian = RobustMedian()  # noqa: RUF009 - a frozen value
    peaks: tuple[int, ...] = ()
    grown: tuple[int, ...] = ()
    sent: int = 0
    waiting: float | None = None
    apart: float | None = None
    allowed: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def balance(self) -> float | None:
        """The least of the ranks' growths over the largest: 1 is even."""
        return min(self.grown) / max(self.grown) if any(self.grown) else None

    @property
    def agrees(self) -> bool:
        """Whether it trained as `single` does, but for rounding."""
        return not self.failed and self.apart is not None and self.apart <= self.allowed


@dataclass(frozen=True)
class ComparisonTable:
    """All strategies in the order asked for. `steps` were trained by each, `batch_size` samples in each step, over all ranks."""

    rows: tuple[StrategyRow, ...]
    steps: int
    batch_size: int
    model: str
    data: str

    @property
    def baseline(self) -> StrategyRow | None:
        return next((row for row in self.rows if row.strategy == BASELINE and not row.failed), None)

    @property
    def best(self) -> StrategyRow | None:
        """The fastest that trains as `single` does."""
        return max((row for row in self.rows if row.agrees), key=lambda row: row.samples_per_second, default=None)

    @property
    def as_fast(self) -> tuple[StrategyRow, ...]:
        """Those that train as `single` does and cannot be told from the fastest by so few and so scattered steps."""
        best = self.best
        return tuple(row for row in self.rows if best is not None and row.agrees and not is_slower(row, best))


def is_slower(row: StrategyRow, other: StrategyRow) -> bool:
    """Whether the steps of `row` take longer by more than three standard errors of the two medians."""
    return row.step.value - other.step.value > 3 * math.hypot(row.step.error, other.step.error)


def row_of(
    strategy: str,
    ranks: int,
    batch_size: int,
    precision: str,
    recording: Recording,
    measured: Mapping[int, Mapping[str, Any]],
    results: Mapping[int, Mapping[str, Any]],
    baseline: Sequence[float] | None,
) -> StrategyRow:
    """The row of a strategy that has trained. `measured` and `results`: what each rank wrote; `baseline`: losses of `single`."""
    steps = {
        rank: RobustMedian.of(found["step_seconds"][WARM_UP:] or found["step_seconds"])
        for rank, found in measured.items()
    }
    slowest = max(steps.values(), key=lambda step: step.value)
    busy = sorted(rank for rank in measured if measured[rank]["step_seconds"])
    losses = losses_of(results)
    return StrategyRow(
        strategy=strategy,
        ranks=ranks,
        precision=precision,
        device=str(measured[busy[0]]["device"]),
        threads=int(measured[busy[0]]["threads"]),
        samples_per_second=batch_size / slowest.value if slowest.value else 0.0,
        step=slowest,
        peaks=tuple(int(measured[rank]["peak_bytes"]) for rank in busy),
        grown=tuple(int(measured[rank]["peak_bytes_of_training"]) for rank in busy),
        sent=max((bytes_sent(log) for log in recording.ranks.values()), default=0),
        waiting=waiting_share(recording, measured, steps),
        apart=apart(losses, baseline) if baseline is not None else None,
        allowed=ALLOWED.get(precision, ALLOWED["fp32"]),
        notes=tuple(dict.fromkeys(note for result in results.values() for note in result.get("notes", ()))),
    )


def losses_of(results: Mapping[int, Mapping[str, Any]]) -> list[float]:
    """The global mean loss of each step, from the first rank that has one."""
    for _, result in sorted(results.items()):
        if result.get("losses"):
            return [float.fromhex(loss) for loss in result["losses"]]
    return []


def apart(losses: Sequence[float], baseline: Sequence[float]) -> float | None:
    """The largest relative difference of the first losses; None without losses."""
    pairs = list(zip(losses[:COMPARED], baseline[:COMPARED], strict=False))
    if not pairs:
        return None
    return max(abs(one - other) / max(abs(other), 1e-12) for one, other in pairs)


def bytes_sent(log: RankTrace) -> int:
    """Payload that a rank hands to collectives and sends in a step: the median over the steps after the first ones."""
    calls = log.calls[~np.isin(log.calls["op"], _RECEIVES)]
    if not len(calls) or not len(log.steps):
        return 0
    sums = np.bincount(calls["step"].astype(np.int64), weights=calls["nbytes"].astype(float), minlength=1)
    last = int(log.steps["step"][-1])
    oldest = int(log.calls["step"][0]) + 1 if log.lost.get("calls") else 0
    chosen = sums[max(WARM_UP, oldest) : last]
    return int(np.median(chosen)) if len(chosen) else 0


def waiting_share(
    recording: Recording, measured: Mapping[int, Mapping[str, Any]], steps: Mapping[int, RobustMedian]
) -> float | None:
    """Share of a step (0-1, mean over ranks) in which a rank does nothing but wait for communication.

    That is waiting for handles, calls that block, and what backward lasts beyond its last bucket (DistributedDataParallel waits
    inside C++). None where the host does not wait itself: on a device, or in functional collectives (tensor parallelism).
    """
    shares: list[float] = []
    for rank, found in measured.items():
        log = recording.ranks.get(rank)
        if log is None or found["device"] != "cpu" or not steps[rank].value or _waits_unseen(log):
            return None
        waits = _tails(log) + log.rows("times")["waited_ns"][WARM_UP:].astype(float) + _blocked(log)
        if len(waits):
            shares.append(min(1.0, RobustMedian.of(waits).value / 1e9 / steps[rank].value))
    return float(np.mean(shares)) if shares else None


def _waits_unseen(log: RankTrace) -> bool:
    """Whether reductions went through functional collectives (torch.distributed._functional_collectives): torch waits for them
    inside C++, and nobody asks their handles."""
    calls = log.calls
    functional = ((calls["flags"] & _UNBLOCKING) == CallFlag.ASYNC) & (calls["waited_ns"] == 0)
    return bool((functional & (calls["op"] == Op.ALL_REDUCE)).sum() > len(log.steps))


def _blocked(log: RankTrace) -> Any:
    """What each step spent in calls that block, nanoseconds by step."""
    calls, rows = log.calls, log.rows("times")
    mine = calls[((calls["flags"] & _UNBLOCKING) == 0) & (calls["returned_ns"] > 0)]
    took = (mine["returned_ns"] - mine["entered_ns"]).astype(float)
    length = int(rows["step"].max()) + 1 if len(rows) else 1
    sums = np.bincount(mine["step"].astype(np.int64) + 1, weights=took, minlength=length)
    return sums[rows["step"][WARM_UP:].astype(np.int64)]


def _tails(log: RankTrace) -> Any:
    """What each backward pass lasted after the last call that C++ issued in it, nanoseconds by step; 0 without such a call."""
    calls, rows = log.calls, log.rows("times")
    native = calls["entered_ns"][(calls["flags"] & CallFlag.NATIVE) != 0].astype(np.int64)
    found = []
    for row in rows[WARM_UP:]:
        began, ended = int(row["forward_ended_ns"]), int(row["backward_ended_ns"])
        at = int(np.searchsorted(native, ended, "right")) - 1
        last = ended - int(native[at]) if at >= 0 and native[at] >= began else 0
        found.append(last + int(row["earlier_tails_ns"]))
    return np.array(found, float)
