"""Learning rates that differ: the same schedule at another pace, because a rank left a loop, or schedules that really differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing.gradients import trained_job

CHECKS = [PLUGINS.checks["DD218"]]
SOURCE = """\
def train(optimizer, batches, target, steps):
    for turn in range(9):
        optimizer.param_groups[0]["lr"] = 0.1 / (turn + 1)
        for _ in range(2):
            for batch in batches:
                if batch is None:
                    continue
                divergence = loss(batch)
                for part in batch:
                    if part > 3:
                        break
                optimizer.step()
                if steps > 1000:
                    break
            if target and divergence > target:
                break
"""
STEP = "train.py:12 train"


def told(own: list[float], other: list[float]) -> Finding:
    """The finding of a job whose two ranks stepped with these learning rates."""
    job = trained_job(2).initial()
    apart = False
    for one, two in zip(own, other, strict=True):
        apart = apart or one != two
        job.step(
            lr={0: one, 1: two},
            hyper={0: round(one * 1e6), 1: round(two * 1e6)},
            params={1: 1} if apart else {},
            site=STEP,
        )
    recording = replace(job.recording(), sources={"/job/train.py": SOURCE})
    (finding,) = examine(recording, CHECKS).findings
    return finding


def test_a_rank_that_left_a_loop_earlier_is_named_with_the_condition_that_let_it() -> None:
    finding = told([0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.02], [0.1, 0.1, 0.05, 0.03, 0.03, 0.02, 0.02])

    assert "rank 1 went through the same values earlier" in finding.why
    assert [(place.site.line, place.ranks) for place in finding.places if "leaves the loop" in place.role] == [
        (15, (1,))
    ]
    assert "`if target and divergence > target:` (train.py:15)" in finding.prescriptions[0].change


@pytest.mark.parametrize("other", [[0.1, 0.1, 0.1, 0.01, 0.01, 0.01], [0.1, 0.1, 0.1, 0.04, 0.03, 0.02]])
def test_a_schedule_of_its_own_is_put_down_to_no_loop(other: list[float]) -> None:
    finding = told([0.1, 0.1, 0.1, 0.1, 0.05, 0.04], other)

    assert "earlier" not in finding.why
    assert not finding.prescriptions[0].change


SCHEDULER = """\
def is_main():
    return dist.get_rank() == 0

def train(optimizer, scheduler, batches):
    for batch in batches:
        loss(batch).backward()
        optimizer.step()
        if {condition}:
            scheduler.step({metric})
            print(scheduler.get_last_lr())
"""


@pytest.mark.parametrize(
    ("condition", "metric", "named", "patched"),
    [("is_main()", "", True, True), ("is_main()", "batch.loss", True, False), ("rank == 2", "", False, False)],
)
def test_a_scheduler_that_one_rank_steps_is_taken_out_of_its_condition(
    condition: str, metric: str, named: bool, patched: bool
) -> None:
    """A metric may be each rank's own; a condition that keeps both ranks away explains nothing."""
    job = trained_job(2).initial().step(site="train.py:7 train")
    job.step(lr={0: 0.05, 1: 0.1}, hyper={0: 5, 1: 10}, params={1: 1}, site="train.py:7 train")
    source = SCHEDULER.format(condition=condition, metric=metric)

    (finding,) = CHECKS[0].look(replace(job.recording(), sources={"/job/train.py": source}))

    assert finding.place is not None
    assert finding.place.line == 9
    assert (f"at train.py:9 is reached only where `{condition}`" in finding.why) is named
    (prescription,) = finding.prescriptions
    assert ("take it out of" in prescription.change) is named
    moved = "".join(edit.text for edit in prescription.edits)
    assert moved.split() == (["scheduler.step()", "if", "is_main():"] if patched else [])


PLATEAU = """\
from torch.optim.lr_scheduler import ReduceLROnPlateau


def train(model, batches, optimizer):
    for batch in batches:
        model(batch).backward()
        optimizer.step()


def main():
    plateau = ReduceLROnPlateau(optimizer)
    for epoch in range(9):
        train(model, batches, optimizer)
        plateau.step(validate(model))
"""


def test_the_line_that_moves_the_schedule_is_found_by_what_made_it_whatever_its_name() -> None:
    job = trained_job(2).initial().step(site="train.py:7 train")
    job.step(lr={0: 0.1, 1: 0.05}, hyper={0: 7, 1: 8}, params={1: 1}, site="train.py:7 train")

    (finding,) = examine(replace(job.recording(), sources={"/job/train.py": PLATEAU}), CHECKS).findings

    assert finding.place.line == 14
