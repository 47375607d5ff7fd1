"""Which autograd functions hand on nothing but the rank's own part of the gradient, by their source."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.gather_functions import own_part_functions

GATHER = """\
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_gather(out, x)
        return tuple(out)
    @staticmethod
    def backward(ctx, *grads):
        {backward}
"""
DERIVED = """\
class Summed(Gather):
    @staticmethod
    def backward(ctx, *grads):
        dist.all_reduce(every)
        return every[rank]
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (GATHER.format(backward="return grads[dist.get_rank()]"), 8),
        (GATHER.format(backward="return grads[dist.get_rank()] * world"), 0),
        (GATHER.format(backward="dist.all_reduce(every); return every[rank]"), 0),
        (GATHER.format(backward="return torch.stack(grads).sum(0)"), 0),
        (GATHER.format(backward="return grads[rank]").replace("torch.autograd.Function", "Module"), 0),
        (GATHER.format(backward="return grads[rank]") + DERIVED, 0),
    ],
    ids=["own part", "times the ranks", "summed", "all parts", "no function", "one forward of two classes"],
)
def test_a_backward_that_takes_its_own_part_and_exchanges_nothing_is_found(source: str, line: int) -> None:
    assert [one.returns.line for one in own_part_functions({"train.py": source})] == [line] * bool(line)
