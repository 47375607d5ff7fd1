"""Which number a step of an optimizer gets."""

from __future__ import annotations

import torch

from distdoctor.probe.context import Rank
from distdoctor.probe.progress.step_counts import StepCounts
from distdoctor.recording.trace.probe_settings import ProbeSettings


class Counted:
    """Optimizers that are made and stepped, as the probe hears of it."""

    def __init__(self) -> None:
        self.rank = Rank("", ProbeSettings())
        self.counts = StepCounts(self.rank)

    def made(self, *parameters: torch.nn.Parameter) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.counts.made(optimizer)
        return optimizer

    def steps(self, optimizer: torch.optim.SGD, times: int = 1) -> int:
        for _ in range(times):
            self.rank.step = max(self.rank.step, self.counts.stepped(optimizer))
        return self.rank.step


def test_an_optimizer_that_is_built_anew_goes_on_counting() -> None:
    job, head, body = Counted(), torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))

    first = job.made(head)
    assert job.steps(first, 12) == 12
    second = job.made(body, head)  # unfrozen

    assert job.steps(second, 8) == 20


def test_optimizers_that_are_made_side_by_side_count_for_themselves() -> None:
    job, maker, critic = Counted(), torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    making, judging, outer = job.made(maker), job.made(critic), job.made(maker)

    for _ in range(3):
        job.steps(judging, 5)
        job.steps(making)
        job.steps(outer)

    assert job.rank.step == 15


def test_an_inner_loop_over_copies_of_the_parameters_counts_no_step_of_the_outer() -> None:
    job, parameter = Counted(), torch.nn.Parameter(torch.ones(1))
    outer = job.made(parameter)

    for _ in range(4):
        job.steps(job.made(torch.nn.Parameter(parameter.detach().clone())), 2)
        job.steps(outer)

    assert job.rank.step == 4
