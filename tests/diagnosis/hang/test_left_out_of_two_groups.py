"""A call of one group that a rank leaves out while it goes on in another one, and the same two groups in two orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

HANGS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
LOOKUP, GRADIENTS = "vocab.py:17 counts", "train.py:41 main"


def told(job: Recording) -> list[Finding]:
    return [one for one in examine(job, HANGS, live=True).findings if one.severity.name == "ERROR"]


def trained(*steps: str, reversed_in: int = -1) -> Recording:
    """Steps in which both ranks look something up in a group of its own before they reduce (`both`), or do not (`none`); in the
    last one only rank 1 does."""
    script = recording(ranks=2).group("a", [0, 1]).group("b", [0, 1])
    for number, step in enumerate(steps):
        calls = [("a", LOOKUP), ("b", GRADIENTS)] if step == "both" else [("b", GRADIENTS)]
        for group, site in calls[::-1] if number == reversed_in else calls:
            script.collective("all_reduce", [8], group=group, site=site)
        script.step()
    script.collective("all_reduce", [8], group="b", site=GRADIENTS, only=0)
    script.collective("all_reduce", [8], group="a", site=LOOKUP, only=1)
    return script.live(silent_for=90)


def test_a_call_that_comes_first_and_not_in_each_step_was_left_out() -> None:
    (finding,) = told(trained("both", "none", "both", "none", "none"))

    assert (finding.code, finding.ranks, finding.undecided) == ("DD101", (0, 1), True)
    assert "vocab.py:17" in finding.prescriptions[0].change


@pytest.mark.parametrize(
    ("steps", "reversed_in"),
    [
        pytest.param(("both", "none", "both", "none"), 2, id="either order has been used"),
        pytest.param(("both", "both"), 0, id="always both"),
        pytest.param((), -1, id="nothing is known"),
    ],
)
def test_two_orders_of_two_groups_stay_a_ring(steps: tuple[str, ...], reversed_in: int) -> None:
    assert [one.code for one in told(trained(*steps, reversed_in=reversed_in))] == ["DD108"]


CACHED = """def create(path, a, b):
    if not os.path.isfile(path):
        build(path)
        dist.barrier(group=a)
    dist.all_reduce(x, group=b)
"""
IN_TWO_ORDERS = """def create(path, a, b):
    if os.path.isfile(path):
        dist.all_reduce(x, group=b)
        dist.barrier(group=a)
    else:
        dist.barrier(group=a)
        dist.all_reduce(x, group=b)
"""


@pytest.mark.parametrize(
    ("source", "barrier", "reduces", "code"),
    [(CACHED, 4, 5, "DD101"), (IN_TWO_ORDERS, 6, 3, "DD108")],
    ids=["one call under a condition", "both calls in either branch"],
)
def test_a_condition_that_leads_to_one_call_alone_shows_that_it_was_left_out(
    source: str, barrier: int, reduces: int, code: str
) -> None:
    script = recording(ranks=2).group("a", [0, 1]).group("b", [0, 1])
    script.collective("barrier", group="a", site=f"/job/cache.py:{barrier} create", only=0)
    script.collective("all_reduce", [8], group="b", site=f"/job/cache.py:{reduces} create", only=1)

    (finding,) = told(replace(script.live(silent_for=90), sources={"/job/cache.py": source}))

    assert (finding.code, finding.ranks, finding.undecided) == (code, (0, 1), True)
    assert 2 in {place.site.line for place in finding.places}
