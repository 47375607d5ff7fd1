"""Recordings of jobs whose steps take time, made by hand: for tests of checks on speed.

job = timed_job(ranks=2)
job.steps(40, data={1: 30})         # rank 1 waits 30 ms for each batch, and rank 0 waits for rank 1
sick = job.recording()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag, UpdateFlag
from distdoctor.testing.gradients import LOSS_LINE, trained_job
from distdoctor.testing.rank_trace import MILLISECOND

LOOP_LINE = "train.py:28 train"
OTHERS = "leaders"  # the group in which a rank waits elsewhere; whoever asks for that makes it first
Milliseconds = float | Mapping[int, float]


@dataclass(frozen=True)
class Meeting:
    """A collective that blocks all ranks, between backward and the optimizer. `takes`: milliseconds once everybody is there.
    `elsewhere`: those that a rank has waited in a call of another group, just before."""

    op: str
    shape: Sequence[int] = (1,)
    site: str = "train.py:40 train"
    takes: float = 0.2
    after: float = 0.01
    elsewhere: Mapping[int, float] = field(default_factory=dict)


class TimedJob:
    """Ranks behind DistributedDataParallel that meet in one bucket per backward pass, on one clock."""

    def __init__(self, ranks: int = 2, *, workers: int = 0, **about: Any) -> None:
        self.job = trained_job(ranks, **about)
        self.logs = self.job.logs
        self.made = 0
        self.now = {log.rank: log.now for log in self.logs}
        self.passes = [
            log.loader_pass(loop_site=LOOP_LINE, workers=workers, batch_size=8, ended_ns=0,
                            flags=PassFlag.STEPPED | PassFlag.GRADIENTS_ON)
            for log in self.logs
        ]  # fmt: skip

    def steps(
        self,
        count: int = 40,
        *,
        data: Milliseconds = 1,
        forward: Milliseconds = 20,
        backward: Milliseconds = 30,
        transfer: float = 1,
        optimizer: float = 2,
        micro_steps: int = 1,
        synced: int = 1,
        meetings: Iterable[Meeting] = (),
        bucket: Sequence[int] = (1000, 1000),
        collected: Milliseconds = 0,
        elements: Milliseconds = 0,
        **fields: Any,
    ) -> Self:
        """So many steps. Times are milliseconds, of every micro-step, for all ranks or by rank (the others get the usual).

        `synced` of the micro-steps average in backward, the last of them for certain. `collected` of the milliseconds passed in
        the garbage collector; `elements` were in the batches. `fields` go to `layout.UPDATE`.
        """
        own = [_by_rank(given, usual) for given, usual in ((data, 1.0), (forward, 20.0), (backward, 30.0))]
        for _ in range(count):
            self.made += 1
            jitter = 1 + 0.01 * ((self.made * 7) % 5 - 2)
            times: dict[int, dict[str, int]] = {log.rank: dict.fromkeys(_TIMES, 0) for log in self.logs}
            for micro_step in range(micro_steps):
                meets = micro_step >= micro_steps - synced
                self._micro_step(times, own, jitter, transfer if meets else None, bucket, micro_step == micro_steps - 1)
            for meeting in meetings:
                self._meet(meeting)
            for log in self.logs:
                self.now[log.rank] += int(optimizer * jitter * MILLISECOND)
                log.now = max(log.now, self.now[log.rank] - 2 * MILLISECOND)
            defaults = {"backwards": micro_steps, "synced": synced, "unsynced": micro_steps - synced,
                        "flags": UpdateFlag.DIGESTED | UpdateFlag.STATE | UpdateFlag.ONE_LINE}  # fmt: skip
            if micro_steps > 1:
                defaults["roots"] = f"div {micro_steps};NllLoss mean"  # type: ignore[assignment]
            self.job.step(**(defaults | fields))
            for log in self.logs:
                self.now[log.rank] = log.now
                about = times[log.rank] | {
                    "optimizer_ns": int(optimizer * jitter * MILLISECOND),
                    "collected_ns": int(_by_rank(collected, 0)(log.rank) * MILLISECOND),
                    "elements": int(_by_rank(elements, 0)(log.rank)),
                }
                log.times(**about, backwards=micro_steps, batches=micro_steps)
                self.passes[log.rank]["batches"] += micro_steps
                self.passes[log.rank]["drawn"] += 8 * micro_steps
        return self

    def _micro_step(
        self, times: dict[int, dict[str, int]], own: Any, jitter: float, transfer: float | None, bucket: Any, last: bool
    ) -> None:
        data, forward, backward = own
        arrivals = {}
        for log in self.logs:
            waited, before, computed = (
                int(part(log.rank) * jitter * MILLISECOND) for part in (data, forward, backward)
            )
            mine, now = times[log.rank], self.now[log.rank] + waited
            mine["data_ns"] += waited
            mine["forward_ended_ns"] = now + before
            arrivals[log.rank] = now + before + computed
        over = max(arrivals.values()) + int((transfer or 0) * jitter * MILLISECOND)
        for log in self.logs:
            came, mine = arrivals[log.rank], times[log.rank]
            if transfer is not None:
                log.call("all_reduce", bucket, native=True, site=LOSS_LINE, at_ns=came, returned_ns=came)
            ended = over if transfer is not None else came
            mine["backward_ended_ns"] = self.now[log.rank] = ended
            mine["backward_ns"] += ended - mine["forward_ended_ns"]
            if transfer is not None and not last:
                mine["earlier_tails_ns"] += ended - came

    def _meet(self, meeting: Meeting) -> None:
        for rank, waited in meeting.elsewhere.items():
            began = self.now[rank] + 1000
            self.now[rank] = began + int(waited * MILLISECOND)
            self.logs[rank].call(
                "all_reduce",
                meeting.shape,
                group=OTHERS,
                site="train.py:38 lead",
                at_ns=began,
                returned_ns=self.now[rank],
            )
        came = {log.rank: self.now[log.rank] + int(meeting.after * MILLISECOND) for log in self.logs}
        over = max(came.values()) + int(meeting.takes * MILLISECOND)
        shape = "" if meeting.op == "barrier" else meeting.shape
        for log in self.logs:
            log.call(meeting.op, shape, site=meeting.site, at_ns=came[log.rank], returned_ns=over)
            self.now[log.rank] = over

    def recording(self, **about: Any) -> Recording:
        """What would have been read of this job when it is over."""
        return self.job.recording(**about)


def pipelined_job(
    busy: Sequence[float], *, micro_batches: int = 4, steps: int = 40, wait: float = 1.0, ranks: int = 0
) -> Recording:
    """A pipeline of one stage per rank, `busy` milliseconds a step each; all wait for the busiest one and for the bubble."""
    ranks = ranks or len(busy)
    job = timed_job(ranks, wrapped=False)
    bubble = (ranks - 1) / (micro_batches + ranks - 1)
    whole = max(busy) / (1 - bubble) + wait
    for log in job.logs:
        for _ in range(steps):
            began = job.now[log.rank]
            for peer in (log.rank + 1, log.rank - 1):
                for _ in range(micro_batches if 0 <= peer < ranks else 0):
                    log.call(
                        "send", (32,), root=peer, asynchronous=True, site="train.py:31 train", at_ns=log.now + 1000
                    )
            log.now = began + int(whole * MILLISECOND)
            log.step(site="train.py:33 train", at_ns=log.now)
            job.now[log.rank] = log.now
            log.times(
                waited_ns=int((whole - busy[log.rank]) * MILLISECOND), forward_ended_ns=began, backward_ended_ns=log.now
            )
    return job.recording()


_TIMES = ("data_ns", "backward_ns", "forward_ended_ns", "backward_ended_ns", "earlier_tails_ns")


def _by_rank(given: Milliseconds, usual: float) -> Any:
    if isinstance(given, Mapping):
        return lambda rank: given.get(rank, usual)
    return lambda rank: given


def timed_job(ranks: int = 2, **about: Any) -> TimedJob:
    """A job that has not made a step yet."""
    return TimedJob(ranks, **about)
