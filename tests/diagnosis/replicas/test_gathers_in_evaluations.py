"""A gather whose backward hands on its own part is told where trainings go through it, not where evaluations alone do."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.testing.gradients import trained_job

SOURCE = """\
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_gather(out, x)
        return tuple(out)
    @staticmethod
    def backward(ctx, *grads):
        return grads[dist.get_rank()]
"""


@pytest.mark.parametrize(("every", "told"), [(1, True), (4, False)], ids=["trained on", "evaluated"])
def test_a_line_that_gathers_now_and_then_is_that_of_an_evaluation(every: int, told: bool) -> None:
    job = trained_job(2).initial()
    for log in job.logs:
        log.group("0", (0, 1))
    for step in range(12):
        if step % every == 0:
            job.collective("all_gather", [8, 16], site="train.py:4 forward")
        job.collective("all_reduce", [64, 20], site="train.py:30 train").step()
    found = list(PLUGINS.checks["DD217"].look(job.recording(sources={"/job/train.py": SOURCE})))

    assert [one.evidence["function"] for one in found] == ["Gather"] * told
