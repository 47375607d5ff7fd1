"""
DD501 missing-no-sync: gradients are accumulated over several micro-batches and all-reduced in every one of them.

What it means    One optimizer step accumulates the gradients of n backward passes, and DistributedDataParallel averages after
                 each of them. Only the last average is needed: the mean of a sum is the sum of the means.
Why it hurts     n times the bytes on the network, and n times the wait for the slowest rank, for the same result.
How we know      All n backward passes between two steps came from one line, each after a forward that averages, and C++ issued
                 the same calls n times; several optimizers must step one after the other, with no average between. Steps before
                 which a part of the passes was zeroed again are left out. Passes of several lines, of which the source puts one
                 in a no_sync that its forward stands outside of: likely. Bytes are counted. Seconds are the time that
                 the passes before the last spent after sending their last bucket: a lower bound, given only if its median is
                 three deviations above zero.
What to do       Wrap forward and backward of all micro-batches but the last in `with model.no_sync():`.
When it is fine  One backward per step; several models; optimizers that step in turns; passes from different lines (possibly
                 separate losses); closures. FSDP accumulates sharded gradients on purpose, trading time for memory: a note,
                 and only where the source leaves out the averages of DistributedDataParallel and nothing knows fully_shard.
Source           torch.nn.parallel.DistributedDataParallel.no_sync.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.given_values import Line, context_around, no_sync_around_backward
from distdoctor.diagnosis.source.statement_edits import averaged_once
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import Timing
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import CallFlag, Op, UpdateFlag
from distdoctor.recording.trace.reader import Rows
from distdoctor.testing.timing import TimedJob, timed_job

FEWEST = 4  # steps that were looked at: the first four always are
_SCATTERING = [int(op) for op in (Op.REDUCE_SCATTER_TENSOR, Op.REDUCE_SCATTER)]  # the latter by gloo in torch 2.14
_REDUCING = [int(op) for op in (Op.ALL_REDUCE, Op.ALL_REDUCE_COALESCED)] + _SCATTERING
_OF_DDP = ("no_sync", "require_backward_grad_sync")
_OF_FULLY_SHARD = ("set_requires_gradient_sync", "no_backward_sync")


@dataclass(frozen=True)
class Repeated:
    """What one rank sends: per step, of which everything but one in `micro_steps` could be left out. `fewest`: of the micro-steps
    that a step has."""

    micro_steps: int
    fewest: int
    calls: int
    nbytes: int
    needless: int
    update: Update
    around: SourceLine | None = None  # a no_sync around one of several lines of backward passes, but not their forward

    @property
    def times(self) -> str:
        """`4`, or `2-4`."""
        return str(self.micro_steps) if self.fewest == self.micro_steps else f"{self.fewest}-{self.micro_steps}"


@check("DD501", "missing-no-sync", severity=WARNING, stands_alone=True)
def examine(gradients: Gradients, calls: Collectives, timing: Timing | None, sources: Sources) -> Iterator[Finding]:
    found = {rank: one for rank, log in gradients.ranks.items() if (one := _repeated(log, sources)) is not None}
    if found and len({(one.micro_steps, one.fewest) for one in found.values()}) == 1:
        backward = found[min(found)].update.loss_site
        context = context_around(sources.texts, backward, "nullcontext", "no_sync")
        guard = SourceLine() if context else _guard_of_ddp(sources, backward)
        around = found[min(found)].around
        finding = _finding(found, _seconds(timing, found), _edits(gradients, found, sources), around or guard, context)
        yield _around_backward(finding, around) if around else finding
    sharded = {rank: one for rank, log in gradients.ranks.items() if (one := _repeated_shards(log)) is not None}
    guard = _guard(sources, sharded[min(sharded)].update.loss_site) if sharded else SourceLine()
    if guard:
        yield _unguarded(sharded, guard)


def _finding(
    found: dict[int, Repeated],
    saved: tuple[float, ...],
    edits: tuple[Edit, ...],
    guard: SourceLine,
    context: list[Line],
) -> Finding:
    """`context`: what the backward passes stand in that decides whether they average, and where that is made."""
    first, ranks = found[min(found)], tuple(sorted(found))
    site = first.update.loss_site
    return Finding(
        title=f"each step averages gradients {first.times} times instead of once: {_bytes(first.needless)} of "
        f"{_bytes(first.nbytes)} a step are wasted",
        ranks=ranks,
        confidence=CERTAIN,
        place=context[-1][0] if context else site,
        places=(
            *(Place(line, ranks, f"the context is made here: `{text}`") for line, text in context[:0:-1]),
            *(Place(line, ranks, f"the backward passes stand in `{text}`") for line, text in context[:1]),
            Place(site, ranks, f"backward, {first.times} times per step"),
            *(
                (Place(guard, ranks, "speaks of leaving averages out, which the forward must stand in as well"),)
                if guard
                else ()
            ),
            Place(first.update.site, ranks, "the optimizer steps"),
        ),
        evidence={
            "micro_steps": first.micro_steps,
            "calls_per_step": first.calls,
            "bytes_per_step": first.nbytes,
            "bytes_per_step_to_save": first.needless,
            "seconds_per_step_to_save_at_least": [round(value, 6) for value in saved] or None,
        },
        why=f"{first.times} forwards that average and {first.times} backward passes on one line between two optimizer steps; "
        f"C++ issued {first.calls} calls, {max(1, first.calls // first.micro_steps)} per pass",
        prescriptions=(Prescription("no-sync", effect=_effect(first, saved), edits=edits),),
    )


def _around_backward(finding: Finding, around: SourceLine) -> Finding:
    """The passes come from several lines; that they make up one step is known by the no_sync in the source."""
    (prescription,) = finding.prescriptions
    return replace(
        finding,
        title=f"no_sync is around the backward alone, without effect: {finding.title}",
        place=around,
        confidence=LIKELY,
        why=finding.why.replace(" on one line", "")
        + "; DistributedDataParallel decides in the forward whether the backward averages",
        prescriptions=(
            replace(prescription, change="take the forward into the block: with model.no_sync():", edits=()),
        ),
    )


def _edits(gradients: Gradients, found: dict[int, Repeated], sources: Sources) -> tuple[Edit, ...]:
    wrapped = {event.site for rank in found for event in gradients.ranks[rank].events(Wrapped)}
    update = found[min(found)].update
    return averaged_once(sources.texts, update.loss_site, update.site, wrapped.pop()) if len(wrapped) == 1 else ()


def _repeated(one: RankGradients, sources: Sources) -> Repeated | None:
    """The same averages several times for one step of all optimizers, in every step that was looked at. None: not so."""
    digested, around = _accumulating(one), SourceLine()
    if digested and not all(u.flags & UpdateFlag.ONE_LINE for u in digested):
        around = no_sync_around_backward(sources.texts, digested[-1].loss_site)
        digested = digested if around else []
    if len(list(one.events(Wrapped))) != 1 or not digested:
        return None
    if any(u.number("synced") != u.number("backwards") or u.number("unsynced") for u in digested):
        return None
    native = one.log.calls[(one.log.calls["flags"] & CallFlag.NATIVE) != 0]
    sent = _sent(one, native[native["op"] == Op.ALL_REDUCE], digested)
    return replace(sent, around=around) if sent is not None else None


def _repeated_shards(one: RankGradients) -> Repeated | None:
    """The same for shards, which are scattered after each pass: without DistributedDataParallel."""
    digested = _accumulating(one)
    if one.log.has_noted(Wrapped) or not digested or not all(u.flags & UpdateFlag.ONE_LINE for u in digested):
        return None
    return _sent(one, one.log.calls[np.isin(one.log.calls["op"], _SCATTERING)], digested)


def _accumulating(one: RankGradients) -> list[Update]:
    """The steps that were looked at, where the optimizers step together after several passes; [] where not.

    Passes of which some were zeroed before the step (a window that an epoch's end cut short) are left out, if they are the fewer:
    what the others sum up is not touched by that.
    """
    by_step: dict[int, list[Update]] = defaultdict(list)
    later = [update for update in one.updates if update.step > 1]
    used = [update for update in later if not update.flags & UpdateFlag.CLEARED]
    if 2 * len(used) <= len(later):
        return []
    for update in used:
        if update.digested or len(used) < len(later):
            by_step[update.step].append(update)
    optimizers = {update.optimizer for update in one.updates if update.step > 0}
    whole = [updates for _, updates in sorted(by_step.items()) if {u.optimizer for u in updates} == optimizers]
    first = [updates[0] for updates in whole]
    accumulates = len(whole) >= FEWEST - 1 and _by_several_passes(
        first
    )  # nearly no job does: asked before the calls are
    return first if accumulates and all(_together(one, updates) for updates in whole) else []


def _by_several_passes(updates: list[Update]) -> bool:
    """Whether nearly all of these steps follow several passes."""
    return sum(update.number("backwards") > 1 for update in updates) >= 0.8 * len(updates)


def _together(one: RankGradients, updates: list[Update]) -> bool:
    """Whether the optimizers used the same passes: they count the same, and nothing is averaged between their steps."""
    if len(updates) == 1:
        return True
    if len({(u.number("backwards"), u.number("synced"), u.number("unsynced")) for u in updates}) > 1:
        return False
    began, ended = (one_of(u.at_ns for u in updates) - one.log.monotonic_to_wall_ns for one_of in (min, max))
    calls = one.log.calls
    between = (calls["entered_ns"] > began) & (calls["entered_ns"] < ended)
    return not bool(np.isin(calls["op"][between], _REDUCING).any())


def _sent(one: RankGradients, calls: Rows, digested: list[Update]) -> Repeated | None:
    """What these calls send, where in nearly every step they are the same ones in each of its passes."""
    cleared = {update.step for update in one.updates if update.flags & UpdateFlag.CLEARED}
    passes = {int(row["step"]) - 1: int(row["micro_steps"]) for row in one.log.steps}
    whole = np.unique(calls["step"])[1:-1].tolist()  # the last one may go on, the first may have left the ring
    whole = [step for step in whole if step + 1 not in cleared]
    rounds = [(calls[calls["step"] == step], passes.get(step, 0)) for step in whole]
    repeated = [(rows, times) for rows, times in rounds if times and _is_repeated(rows["signature"], times)]
    counts = [times for _, times in repeated if times > 1]
    if not counts or len(repeated) < 0.8 * len(whole):
        return None
    calls_each = int(np.median([len(rows) for rows, _ in repeated]))
    sent = [(int(rows["nbytes"].sum()), times) for rows, times in repeated]
    nbytes = int(np.median([size for size, _ in sent]))
    needless = int(np.median([size * (times - 1) // times for size, times in sent]))
    return Repeated(max(counts), min(counts), calls_each, nbytes, needless, digested[-1])


def _guard(sources: Sources, loss: SourceLine) -> SourceLine:
    """The line that leaves out the averages of DistributedDataParallel, where no line knows those of fully_shard."""
    if any(word in source for source in sources.texts.values() for word in _OF_FULLY_SHARD):
        return SourceLine()
    return _guard_of_ddp(sources, loss)


def _guard_near(sources: Sources, near: SourceLine) -> SourceLine:
    """The line of a file, nearest to another one, that speaks of leaving out the averages of DistributedDataParallel."""
    return next((line for word in _OF_DDP if (line := line_with(sources.texts, near, word))), SourceLine())


def _guard_of_ddp(sources: Sources, loss: SourceLine) -> SourceLine:
    """The nearest one to the backward pass, else the first of another file."""
    files = (loss, *(SourceLine(path, 1) for path in sorted(sources.texts) if path != loss.path))
    return next(filter(None, (_guard_near(sources, near) for near in files)), SourceLine())


def _unguarded(found: dict[int, Repeated], guard: SourceLine) -> Finding:
    first, ranks = found[min(found)], tuple(sorted(found))
    site = first.update.loss_site
    return Finding(
        title=f"each step reduces the shards of its gradients {first.times} times: what leaves out the averages of "
        "DistributedDataParallel does not reach fully_shard",
        ranks=ranks,
        severity=NOTE,
        confidence=LIKELY,
        place=guard,
        places=(
            Place(guard, ranks, "means to reduce once per step"),
            Place(site, ranks, f"backward, {first.times} times"),
        ),
        evidence={
            "micro_steps": first.micro_steps,
            "calls_per_step": first.calls,
            "bytes_per_step": first.nbytes,
            "bytes_per_step_to_save": first.needless,
        },
        why=f"{first.calls} reduce_scatter_tensor calls a step, {max(1, first.calls // first.micro_steps)} in each of its passes",
        prescriptions=(
            Prescription(
                "no-sync",
                change="model.set_requires_gradient_sync(is_last_micro_step)  # before each backward",
                effect=f"{_bytes(first.needless)} less to send per step, for memory of whole gradients in between",
            ),
        ),
    )


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
