"""Which condition let a rank leave a loop that the others are still in."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.loop_exits import exits_around, left_by, skipped_by
from distdoctor.recording.recording import SourceLine

SOURCE = """\
def reduce(loss):
    dist.all_reduce(loss)


def train_step(trainer, batch):
    loss = trainer.forward(batch)
    trainer.average = reduce(loss)
    return loss


def train(trainer, loader, best):
    for epoch in range(9):
        for step, batch in enumerate(loader):
            if batch is None:
                continue
            loss = train_step(trainer, batch)
            for part in batch:
                if part > 3:
                    break
            if step > 100:
                break
        if loss < best:
            break
    dist.barrier()


def evaluate(trainer, loader):
    for batch in loader:
        trainer.forward(batch)
        if batch.loss > 3:
            break
    dist.barrier()


def forever(trainer, patience):
    while True:
        if train_step(trainer, 1) < patience:
            sys.exit(0)
"""
REDUCE = SourceLine("train.py", 2, "reduce")


def test_the_loop_is_found_through_the_functions_that_lead_to_the_call() -> None:
    left = left_by({"train.py": SOURCE}, REDUCE, SourceLine("train.py", 24, "train"))

    assert left is not None
    assert left.words == "`if loss < best:` (train.py:22)"


@pytest.mark.parametrize(
    ("inside", "after"),
    [
        (REDUCE, SourceLine("train.py", 32, "evaluate")),  # no loop before it leads to the call
        (REDUCE, SourceLine("train.py", 16, "train")),  # still in the loop
        (REDUCE, None),  # two loops may have been left for good
        (SourceLine("train.py", 6, "forward"), SourceLine("train.py", 24, "train")),  # torch calls it, not this file
        (SourceLine("other.py", 9, "elsewhere"), SourceLine("train.py", 24, "train")),
    ],
)
def test_where_none_or_several_fit_nobody_is_accused(inside: SourceLine, after: SourceLine | None) -> None:
    assert left_by({"train.py": SOURCE}, inside, after) is None


def test_a_rank_that_has_ended_may_have_returned_or_exited() -> None:
    ending = SOURCE.partition("def train(")[0] + "def forever" + SOURCE.partition("def forever")[2]

    left = left_by({"train.py": ending}, REDUCE)

    assert left is not None
    assert left.test == "train_step(trainer, 1) < patience"


def test_the_exits_of_the_loops_around_a_line_are_their_own_and_do_not_only_count() -> None:
    found = exits_around({"train.py": SOURCE}, SourceLine("train.py", 16, "train"))

    assert [(one.site.line, one.test) for one in found] == [(22, "loss < best")]
    assert exits_around({"train.py": "def ("}, SourceLine("train.py", 1, "")) == ()


@pytest.mark.parametrize(
    ("test", "is_told"),
    [
        ("torch.isnan(loss)", True),
        ("not math.isfinite(loss.item())", True),
        ("dist.get_rank() == 1 and broken", True),
        ("loss > 10", True),
        ("global_step > 10", False),
        ("batch is None", False),
        ("len(batch) < 4", True),
    ],
)
def test_a_turn_that_a_rank_skips_by_itself_may_be_why_it_ended_early(test: str, is_told: bool) -> None:
    source = f"for batch in loader:\n    if {test}:\n        continue\n    dist.all_reduce(batch)\n"

    left = left_by({"train.py": source}, SourceLine("train.py", 4, "<module>"))

    assert (left is not None and left.skips) == is_told


def test_a_turn_is_skipped_only_before_the_call() -> None:
    body = "for batch in loader:\n    {}\n    average(batch)\n    {}\n"
    before, after = "if loss > 10: continue", "if batch.loss > 10: continue"

    for first, second, told in ((before, "pass", True), ("pass", after, False), (before, before, True)):
        found = skipped_by({"train.py": body.format(first, second)}, SourceLine("tools.py", 7, "average"))
        assert (found is not None and found.skips) == told
