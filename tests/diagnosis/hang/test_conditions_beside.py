"""A condition that stands around the odd call, but in a function that only one side was led to: it did not part the ranks."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
LAZY = """\
import torch.distributed as dist
class Summary:
    def __init__(self, tensor):
        self.tensor = tensor
    def __str__(self):
        tensor = self.tensor
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        return str(tensor.mean())
def main(model, log):
    for step in range(100):
        dist.all_reduce(model.loss)
        for parameter in model.parameters():
            log.info("%s", Summary(parameter))
"""


def told() -> list[Finding]:
    script = recording(ranks=3)
    script.collective("all_reduce", [1], site="train.py:12 main").step()
    script.collective("all_gather", [3, 12], only=0, site="train.py:8 __str__")
    script.collective("all_reduce", [1], only=(1, 2), site="train.py:12 main")
    return list(examine(script.source("train.py", LAZY).live(), CHECKS, live=True).findings)


def test_what_a_helper_asks_of_the_type_is_not_what_parted_the_ranks() -> None:
    (finding,) = told()

    assert (finding.code, finding.ranks) == ("DD101", (0,))
    assert not any("isinstance" in place.role for place in finding.places)
    assert "decides: `log.info('%s', Summary(parameter))`" in [place.role for place in finding.places]
