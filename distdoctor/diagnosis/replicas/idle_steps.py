"""Steps at the end of a training that change nothing, because its schedule has ended before: the learning rate is zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import UpdateFlag

LEAST_STEPS, LEAST_SHARE = 10, 0.15  # a schedule that ends at zero makes one such step, or a few
BEFORE = 3  # steps with a learning rate, at least


@dataclass(frozen=True)
class IdleSteps:
    """From step `since` to step `until`, the last one that is known, an optimizer has changed no bit on these ranks."""

    optimizer: int
    ranks: tuple[int, ...]
    since: int
    until: int
    site: SourceLine
    at_ns: int
    parameters: int  # that were compared; 0: it is known by the rates of all groups alone

    @property
    def steps(self) -> int:
        return self.until - self.since + 1


def idle_steps(gradients: Gradients) -> list[IdleSteps]:
    """Of each optimizer, on the ranks where it is so."""
    found: dict[tuple[int, int], list[IdleSteps]] = defaultdict(list)
    for own in gradients.ranks.values():
        for one in _of_rank(own):
            found[one.optimizer, one.since].append(one)
    return [_together(alike) for _, alike in sorted(found.items())]


def _together(alike: Sequence[IdleSteps]) -> IdleSteps:
    first, ranks = alike[0], tuple(sorted(one.ranks[0] for one in alike))
    until = max(one.until for one in alike)
    return IdleSteps(first.optimizer, ranks, first.since, until, first.site, first.at_ns, first.parameters)


def _of_rank(own: RankGradients) -> Iterator[IdleSteps]:
    by_optimizer: dict[int, list[Update]] = defaultdict(list)
    for update in own.updates:
        if update.step:
            by_optimizer[update.optimizer].append(update)
    for optimizer, updates in by_optimizer.items():
        moving = [number for number, update in enumerate(updates) if update.value("lr") != 0]
        idle = updates[moving[-1] + 1 :] if len(moving) >= BEFORE else []
        if not idle:
            continue
        until = idle[-1].step
        # A rate that is no longer zero would have been written down since; of several optimizers nobody counts these steps.
        if len(by_optimizer) == 1 and idle[-1].flags & UpdateFlag.NO_RATE:
            until = max(until, int(own.log.steps["step"].max(initial=0)))
        steps = until - idle[0].step + 1
        if steps < LEAST_STEPS or steps < LEAST_SHARE * until:
            continue
        compared = _unchanged(own, optimizer, idle)
        if compared or (compared is not None and all(update.flags & UpdateFlag.NO_RATE for update in idle)):
            site = idle[0].site
            yield IdleSteps(optimizer, (own.rank,), idle[0].step, until, site, idle[0].at_ns, compared)


def _unchanged(own: RankGradients, optimizer: int, idle: Iterable[Update]) -> int | None:
    """How many parameters had a gradient and were left as they were in every one of these steps that was looked at; 0: nobody
    has looked at both. None: some changed."""
    fewest = 0
    for update in idle:
        rows = [row for row in own.digests(update.step, optimizer).values() if int(row["before"])]
        if any(int(row["before"]) != int(row["param"]) for row in rows):
            return None
        with_gradient = sum(int(row["grad"]) != 0 for row in rows)
        fewest = min(fewest or with_gradient, with_gradient) if with_gradient else fewest
    return fewest
