"""
DD501 missing-no-sync: gradients are accumulated over several micro-batches and all-reduced in every one of them.

What it means    One optimizer step accumulates the gradients of n backward passes, and DistributedDataParallel averages after
                 each of them. Only the last average is needed: the mean of a sum is the sum of the means.
Why it hurts     n times the bytes on the network, and n times the wait for the slowest rank, for the same result.
How we know      All n backward passes between two steps came from one line, each after a forward that averages, and C++ issued
                 the same calls n times. Bytes are counted. Seconds are the time that the passes before the last spent after
                 sending their last bucket: a lower bound, given only if its median is three deviations above zero.
What to do       Wrap forward and backward of all micro-batches but the last in `with model.no_sync():`.
When it is fine  One backward per step; several models or optimizers; passes from different lines (possibly separate losses);
                 closures. FSDP accumulates sharded gradients on purpose, trading time for memory, and is not reported.
Source           torch.nn.parallel.DistributedDataParallel.no_sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import CERTAIN, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import Timing
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import CallFlag, Op, UpdateFlag
from distdoctor.testing.timing import TimedJob, timed_job

FEWEST = 4  # steps that were looked at: the first four always are


@dataclass(frozen=True)
class Repeated:
    """What one rank sends: per step, of which everything but one in `micro_steps` could be left out."""

    micro_steps: int
    calls: int
    nbytes: int
    update: Update

    @property
    def needless(self) -> int:
        return self.nbytes * (self.micro_steps - 1) // self.micro_steps


@check("DD501", "missing-no-sync", severity=WARNING, stands_alone=True)
def examine(gradients: Gradients, calls: Collectives, timing: Timing | None) -> Iterator[Finding]:
    found = {rank: one for rank, log in gradients.ranks.items() if (one := _repeated(log)) is not None}
    if not found or len({one.micro_steps for one in found.values()}) > 1:
        return
    first = found[min(found)]
    n, site = first.micro_steps, first.update.loss_site
    saved = _seconds(timing, found)
    yield Finding(
        title=f"each step averages gradients {n} times instead of once: {_bytes(first.needless)} of "
        f"{_bytes(first.nbytes)} a step are wasted",
        ranks=tuple(sorted(found)),
        confidence=CERTAIN,
        place=site,
        places=(
            Place(site, tuple(sorted(found)), f"backward, {n} times per step"),
            Place(first.update.site, tuple(sorted(found)), "the optimizer steps"),
        ),
        evidence={
            "micro_steps": n,
            "calls_per_step": first.calls,
            "bytes_per_step": first.nbytes,
            "bytes_per_step_to_save": first.needless,
            "seconds_per_step_to_save_at_least": [round(value, 6) for value in saved] or None,
        },
        why=f"{n} forwards that average and {n} backward passes on one line between two optimizer steps; "
        f"C++ issued {first.calls} calls, {first.calls // n} per pass",
        prescriptions=(Prescription("no-sync", effect=_effect(first, saved)),),
    )


def _repeated(one: RankGradients) -> Repeated | None:
    """The same averages several times for one step of the only optimizer, in every step that was looked at. None: not so."""
    updates = [update for update in one.updates if update.step > 0]
    if len({update.optimizer for update in updates}) != 1 or len(list(one.events(Wrapped))) != 1:
        return None
    digested = [update for update in updates if update.digested and update.step > 1]
    counts = {(u.number("backwards"), u.number("synced"), u.number("unsynced")) for u in digested}
    if len(digested) < FEWEST - 1 or len(counts) != 1 or not all(u.flags & UpdateFlag.ONE_LINE for u in digested):
        return None
    backwards, synced, unsynced = counts.pop()
    if backwards < 2 or synced != backwards or unsynced:
        return None
    return _sent(one.log, backwards, digested[-1])


def _sent(log: RankTrace, micro_steps: int, update: Update) -> Repeated | None:
    calls = log.calls
    native = calls[((calls["flags"] & CallFlag.NATIVE) != 0) & (calls["op"] == Op.ALL_REDUCE)]
    steps = native["step"]
    whole = np.unique(steps)[1:-1].tolist()  # the last one may go on, the first may have left the ring
    rounds = [native[steps == step] for step in whole]
    rounds = [rows for rows in rounds if _is_repeated(rows["signature"], micro_steps)]
    if not rounds or len(rounds) < 0.8 * len(whole):
        return None
    calls_each = int(np.median([len(rows) for rows in rounds]))
    nbytes = int(np.median([int(rows["nbytes"].sum()) for rows in rounds]))
    return Repeated(micro_steps, calls_each, nbytes, update)


def _is_repeated(signatures: object, times: int) -> bool:
    words = np.asarray(signatures)
    if not len(words) or len(words) % times:
        return False
    return bool((words.reshape(times, -1) == words[: len(words) // times]).all())


def _seconds(timing: Timing | None, found: dict[int, Repeated]) -> tuple[float, ...]:
    """The least and the most that the ranks waited in passes whose average was needless, seconds a step; () when it is noise."""
    if timing is None or not all(times.on_cpu for times in timing.ranks.values()):
        return ()
    tails = [RobustMedian.of(timing.ranks[rank].of("earlier_tails_ns")) for rank in found if rank in timing.ranks]
    if not tails or not all(tail.stands_out for tail in tails):
        return ()
    each = [tail.value / 1e9 for tail in tails]
    return min(each), max(each)


def _effect(one: Repeated, saved: tuple[float, ...]) -> str:
    words = f"{_bytes(one.needless)} less to send per step"
    if not saved:
        return f"{words}; the time saved is within the noise of the step times"
    low, high = (value * 1e3 for value in saved)
    band = f"{low:.1f} ms" if high - low < 0.1 else f"{low:.1f}-{high:.1f} ms"
    return f"{words}, at least {band} (the wait after the last bucket of the passes that need not average)"


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _job(synced: int) -> TimedJob:
    return timed_job(2).steps(24, micro_steps=4, synced=synced, forward=5, backward=8)


def sick() -> Recording:
    return _job(4).recording()


def healthy() -> Recording:
    return _job(1).recording()
