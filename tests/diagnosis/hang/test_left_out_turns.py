"""A turn of the loop that one rank leaves out shows only at the next call that comes every so many turns."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
LOOP = """\
import torch.distributed as dist
DRY = False
def epoch(model, loader, args):
    for i, (ids, labels) in enumerate(loader, 1):
        if {test}:
            continue
        model(ids).backward()
        if i % args.every == 0:
            dist.all_reduce(args.log)
"""


def told(test: str, *, left_out: int) -> Finding:
    """Every third turn logs; rank 1 leaves out this many of the sixth to eighth."""
    script = recording(ranks=2).source("train.py", LOOP.format(test=test))
    for turn in range(1, 10):
        for rank in range(2):
            if rank == 0 or not 7 - left_out < turn < 7:
                script.collective("all_gather", [64], site="train.py:7 epoch", only=rank)
            if turn % 3 == 0:
                script.collective("all_reduce", [2], site="train.py:9 epoch", only=rank)
    return examine(script.live(), CHECKS, live=True).findings[0]


def test_the_condition_that_leads_into_the_next_turn_decides() -> None:
    finding = told("(labels < 0).all()", left_out=2)

    assert (finding.code, finding.ranks) == ("DD101", (1,))
    shown = {place.site.line: place.role for place in finding.places}
    assert shown[5] == "decides: `if (labels < 0).all()`"
    assert shown[6] == "leads away: `continue`"
    assert "with a loss of 0" in finding.prescriptions[0].change


def test_a_question_that_all_ranks_answer_alike_leads_nobody_away() -> None:
    finding = told("DRY", left_out=2)

    assert "leads away" not in " ".join(place.role for place in finding.places)
