"""What is known of one optimizer: its steps, its parameters, and how often it is looked at."""

from __future__ import annotations

import math
import time
from typing import Any

from torch.optim import Optimizer

from distdoctor.probe.gradients.buffers import Buffers
from distdoctor.probe.gradients.copies import Copies
from distdoctor.probe.gradients.inventory import Inventory
from distdoctor.probe.gradients.modes import Modes
from distdoctor.probe.gradients.sampled_elements import SampledElements
from distdoctor.probe.tensors.digests import Digests, Reading

SHARE = 0.003  # of a step; the rest of the promise (0.01) belongs to the streams that look at every step
FIRST_STEPS = 4  # are looked at, whatever it costs: most illnesses are there from the start
THIRDS = 96  # the first step that is looked at as three times a power of two: before it looks are close together anyway
FREE_SECONDS = 0.2  # of looking, once, before the share counts: short jobs and tests are looked at whole
LONGEST = 4096  # steps between two looks
MOST_PATTERNS = (
    4  # of which parameters have a gradient: a model that changes them all the time is looked at as others are
)
MOST_JOINS = 8  # behind which a step is looked at


class Tracked:
    """One optimizer: its steps, its inventory, and how often it is looked at."""

    def __init__(self, number: int, every: int) -> None:
        self.number = number
        self.step = 0
        self.interval = max(1, every)
        self.fixed = every > 0
        self.looking = False
        self.leads = False  # see `beside.Lead`
        self.begun = False  # the step under way: its gradients are there
        self.inventory: Inventory | None = None
        self.digests = {kind: Digests() for kind in ("grads", "params", "state", "state before")}
        self.grads: tuple[Reading, list[int]] | None = None
        self.initial: tuple[Reading, list[int]] | None = None  # parameters before the first step
        self.params: tuple[Reading, list[int]] | None = None  # before the step
        self.state: tuple[Reading | None, list[int]] = (None, [])  # before the step
        self.norms: Reading | None = None
        self.held: list[bool] = []
        self.spots: SampledElements | None = None
        self.buffers: Buffers | None = None
        self.copies: Copies | None = None
        self.modes: Modes | None = None
        self.piled: bool | None = (
            None  # gradients of the step before were there whenever a backward began; None: none did
        )
        self.zeroed = 0  # calls of zero_grad when it stepped last
        self.spent = 0.0  # CPU seconds in this look so far: those that others take from us are not ours
        self.cost = 0.0  # of a look, smoothed
        self.last_at: tuple[float, float] | None = None  # when it stepped last: wall and CPU seconds of the process
        self.pace = 0.0  # seconds that a step works, smoothed
        self.looks = 0
        self.spent_in_all = 0.0
        self.counted = (0, 0, 0)  # backwards, synced, unsynced: totals when it stepped last
        self.written: tuple[Any, ...] = ()
        self.together = 0  # the step behind the last Join, which is looked at whole
        self._joins = 0
        self._patterns: set[tuple[bool, ...]] = set()
        self._anew = 0  # the last step of those that are looked at because other parameters have gradients now

    @property
    def accumulated(self) -> bool:
        """Whether a backward has added to the gradient that is looked at for it, since the step before."""
        return self.spots is not None and self.spots.accumulated

    def forget_backwards(self) -> None:
        """A step is over: what the backwards before it did to the gradients is told."""
        self.piled = None
        if self.spots is not None:
            self.spots.accumulated = False

    def wants(self, step: int) -> bool:
        """Whether a step is looked at: one in an interval, and whatever looks cost the first ones, those whose number is a power
        of two or, later, three times one (a job of a million steps has 33; at most the last third of a job lies behind the last
        one), and the first ones of a new stage."""
        if step % self.interval == 0:
            return True
        new = step <= self._anew or step == self.together
        odd = step // (step & -step)
        return not self.fixed and (step <= FIRST_STEPS or odd == 1 or (odd == 3 and step >= THIRDS) or new)

    def notice_stage(self, optimizer: Optimizer) -> None:
        """Look again from here on where parameters have gradients that had none, or the other way round: a few of each group
        tell. Layers that are unfrozen, or come to the optimizer, are a start of their own."""
        pattern: list[bool] = []
        for group in optimizer.param_groups[:4]:
            held = group["params"]
            pattern += [held[at].grad is not None for at in {0, len(held) // 2, len(held) - 1} if at < len(held)]
        key = tuple(pattern)
        if key in self._patterns or len(self._patterns) >= MOST_PATTERNS:
            return
        if self._patterns:
            self._anew = self.step + FIRST_STEPS
        self._patterns.add(key)

    def go_on_together(self) -> None:
        """Look at the next step: a Join is over."""
        if self._joins < MOST_JOINS:
            self._joins += 1
            self.together = self.step + 1

    def paced(self) -> None:
        """A step is over: learn how long steps work. Where others take the CPU a look takes longer too, so waits do not count."""
        now = (time.perf_counter(), time.process_time())
        if self.last_at:
            took = min(now[0] - self.last_at[0], now[1] - self.last_at[1])
            self.pace = took if not self.pace else 0.9 * self.pace + 0.1 * took
        self.last_at = now

    def afford(self) -> None:
        """After a look: set the interval so that looks cost their share of the time."""
        self.looks += 1
        self.spent_in_all += self.spent
        self.cost = self.spent if not self.cost else min(self.spent, 0.7 * self.cost + 0.3 * self.spent)
        if self.fixed or not self.pace or self.spent_in_all < FREE_SECONDS:
            return
        wanted = self.cost / (SHARE * self.pace)
        self.interval = min(LONGEST, 1 << max(0, math.ceil(math.log2(max(1.0, wanted)))))
