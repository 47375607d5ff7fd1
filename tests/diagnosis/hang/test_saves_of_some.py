"""A sharded model is saved where ranks answer a question differently: it is the save that some make, no module that some run."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

CHECKS = PLUGINS.checks
PATH = "/job/train.py"
SOURCE = """\
class Net(nn.Module):
    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x


def save(model, path):
    state = get_model_state_dict(model, options=full)
    torch.save(state, path)


def main():
    fully_shard(model)
    for epoch in range(9):
        model(x).sum().backward()
        val = validate(model)
        if val < best:
            best = val
            save(model, path)


def validate(model):
    dist.reduce(total, dst=0)
    return total.item()
"""


def told(*, chained: bool) -> Finding:
    script = recording(ranks=2).source("train.py", SOURCE)
    forward = {"chain": [(PATH, (4, 4, 12, 17), "forward"), (PATH, (16, 16, 8, 16), "main")]} if chained else {}
    save = {"chain": [(PATH, (9, 9, 12, 30), "save"), (PATH, (20, 20, 12, 30), "main")]} if chained else {}
    for _ in range(3):
        script.collective("all_gather", [64], site="train.py:4 forward", **forward)
        script.collective("reduce", [1], root=0, site="train.py:24 validate").step()
    script.collective("all_gather", [16], site="train.py:9 save", only=0, **save)
    script.collective("all_gather", [64], site="train.py:4 forward", **forward)
    (finding,) = examine(script.live(), CHECKS.values()).findings
    return finding


@pytest.mark.parametrize("chained", [True, False])
def test_the_save_is_named_with_the_condition_that_let_one_rank_in(chained: bool) -> None:
    finding = told(chained=chained)

    assert finding.code == "DD125"
    assert finding.place is not None
    assert finding.place.line == 9
    assert any(place.site.line == 18 for place in finding.places)
    assert "`val < best`" in finding.prescriptions[0].change
