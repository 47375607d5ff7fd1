"""Leaders of teams call a collective on all ranks that was meant for their own group: nobody left it out."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Stalls
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SOURCE = """\
def fit(team, exchange):
    for epoch in range(9):
        train(team)
        if exchange is not None:
            dist.all_reduce(loss)
        dist.broadcast(other, team.first, group=team.group)
"""


def test_the_members_of_a_smaller_group_are_told_and_the_standstill_is_proven() -> None:
    script = recording(ranks=3).source("train.py", SOURCE)
    script.group("team", [0, 1]).group("alone", [2]).group("leaders", [0, 2])
    for _ in range(4):
        script.collective("all_reduce", [64], group="team", site="train.py:3 fit").step()
    script.collective("all_reduce", [1], only=[0, 2], site="train.py:5 fit")
    script.collective("broadcast", [8], group="team", root=0, site="train.py:6 fit")

    finding = examine(script.live(), CHECKS, live=True).findings[0]

    assert (finding.code, finding.ranks, finding.confidence) == ("DD124", (0, 2), LIKELY)
    assert finding.stalls is Stalls.FOREVER
    assert "the group of ranks 0,2" in finding.prescriptions[0].change
