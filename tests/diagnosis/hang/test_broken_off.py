"""Most ranks broke off their routine in the middle of a step: the one that kept to it is not the odd one, however few it is."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
EXPERTS = """\
import torch
import torch.distributed as dist


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, splits):
        return exchange(x, splits)

    @staticmethod
    def backward(ctx, grad):
        return exchange(grad, ctx.splits), None


def exchange(x, splits):
    out = x.new_empty(sum(splits))
    dist.all_to_all_single(out, x)
    return out


def experts(x):
    if x.shape[0] == 0:
        return torch.empty_like(x).detach()
    return expert(x)


def step(model, x, recv):
    splits = recv.tolist()
    loss = model(AllToAll.apply(experts(AllToAll.apply(x, splits)), splits)).sum()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
"""
FORWARD, BACKWARD, REDUCE, EMPTY = "train.py:8 forward", "train.py:12 backward", "train.py:32 step", 22


def told(left_out_by: tuple[int, ...], *, in_step: bool = True, source: str = EXPERTS) -> Finding:
    """Three steps of forward, backward, reduction; in a fourth these ranks have no backward."""
    script = recording(ranks=3).source("train.py", source)
    for turn in range(4):
        script.collective("all_to_all_single", [16], site=FORWARD)
        script.collective("all_to_all_single", [16], site=BACKWARD)
        script.skipped_by(left_out_by if turn == 3 else ())
        script.collective("all_reduce", [100], site=REDUCE)
        if in_step:
            script.step()
    return examine(script.live(), CHECKS, live=True).findings[0]


def test_the_ranks_that_broke_off_their_routine_are_the_odd_ones() -> None:
    finding = told((0, 1))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD101", (0, 1), LIKELY)


@pytest.mark.parametrize("name", ["experts(x)", "forward(self, x)"])
def test_what_cut_the_graph_decides_where_a_backward_was_left_out(name: str) -> None:
    """Be it a function or the forward of a module; the forward of an autograd function cuts no graph."""
    finding = told((0, 1), source=EXPERTS.replace("def experts(x)", f"def {name}"))

    assert {place.site.line: place.role for place in finding.places}[EMPTY] == "decides: `if x.shape[0] == 0`"
    assert finding.prescriptions[0].slug == "run-on-every-rank"
    assert told((2,)).ranks == (2,)


def test_between_two_turns_the_fewer_ranks_are_the_odd_ones() -> None:
    """Where no optimizer tells turns apart, most ranks may have come to the end of their loop."""
    assert told((0, 1), in_step=False).ranks == (2,)
