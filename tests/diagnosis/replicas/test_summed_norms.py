"""Norms that add up, over ranks, gradients that all of these ranks hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding
from distdoctor.testing.gradients import trained_job

CLIP = """def clip(parameters, limit, group):
    total = sum(p.grad.norm() ** 2 for p in parameters)
    dist.all_reduce(total{op}, group=group)
    total = total{mean}.sqrt()
    for p in parameters:
        p.grad.mul_(limit / total)


def step(model):
    clip(list(model.parameters()), 1.0, None)
"""
SITE = "/job/clip.py:3 clip"


def told(source: str, *, wrapped: bool = True, **about: object) -> list[Finding]:
    job = trained_job(2, wrapped=wrapped, agree=None if wrapped else ()).initial()
    for _ in range(4):
        job.collective("all_reduce", [1], site=SITE, **about).step()  # type: ignore[arg-type]
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD220"]
    return list(examine(job.recording(sources={"/job/clip.py": source}), checks).findings)


def test_squares_that_are_summed_over_replicas_are_told() -> None:
    (finding,) = told(CLIP.format(op="", mean=""))

    assert (finding.ranks, finding.severity, finding.confidence) == ((0, 1), WARNING, LIKELY)
    assert "1.41 times too large" in finding.title
    assert [place.site.line for place in finding.places[:2]] == [10, 3]


def test_squares_that_another_function_adds_up_are_known() -> None:
    added = "def squares(parameters):\n    return sum(p.grad.norm() ** 2 for p in parameters)\n"
    source = CLIP.format(op="", mean="").replace("sum(p.grad.norm() ** 2 for p in parameters)", "squares(parameters)")

    assert [one.place.line for one in told(source + added)] == [10]


COPIES = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


@pytest.mark.parametrize("over", [None, (0, 1)])
def test_squares_of_shards_that_are_summed_over_their_copies_too_are_told(over: tuple[int, ...] | None) -> None:
    """Two copies of two shards (HSDP): a norm over the shards is right, one over all ranks counts each of them twice."""
    job = trained_job(4, agree=COPIES, wrapped=False).initial()
    for log in job.logs:
        log.group("shards", over or range(4))
    for _ in range(4):
        job.collective("all_reduce", [1], site=SITE, group="shards").step()
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD220"]
    found = examine(job.recording(sources={"/job/clip.py": CLIP.format(op="", mean="")}), checks).findings

    assert [(one.ranks, one.evidence["ranks_that_hold_each_gradient"]) for one in found] == (
        [] if over else [((0, 1, 2, 3), 2)]
    )


@pytest.mark.parametrize(
    ("source", "about"),
    [
        (CLIP.format(op="", mean=" / dist.get_world_size(group)"), {}),
        (CLIP.format(op="", mean=" / copies"), {}),
        (CLIP.format(op=", op=dist.ReduceOp.MAX", mean=""), {"reduce_op": "max"}),
        (CLIP.format(op="", mean=""), {"wrapped": False}),
        ("def mean(loss):\n    total = loss.detach()\n    dist.all_reduce(total)\n", {}),
        (CLIP.replace("all_reduce(total", "all_reduce(loss").format(op="", mean=""), {}),
        ("\n".join(CLIP.format(op="", mean="").splitlines()[:4]), {}),
    ],
    ids=[
        "their mean",
        "divided by the copies",
        "the largest",
        "nobody knows who holds what",
        "a loss",
        "a loss beside a norm",
        "a norm that is shown",
    ],
)
def test_other_sums_of_one_number_are_left_alone(source: str, about: dict[str, object]) -> None:
    assert told(source, **about) == []  # type: ignore[arg-type]


def test_of_ranks_whose_traces_are_lost_nothing_is_asked() -> None:
    job = trained_job(2).initial()
    for _ in range(4):
        job.collective("all_reduce", [1], site=SITE).step()
    whole = job.recording(sources={"/job/clip.py": CLIP.format(op="", mean="")})
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD220"]

    for rank in (0, 1):
        left = replace(whole, ranks={rank: whole.ranks[rank]})
        assert [one.reason for one in examine(left, checks).not_examined if one.failed] == []
