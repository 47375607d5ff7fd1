"""The test that leaves out the first batches of every epoch, and those that leave them out of one."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.skipped_batches import skipping_test
from distdoctor.recording.recording import SourceLine

TRAIN = """def train(loader, path, options):
    done = {bound}
    for epoch in range(3):
        for i, batch in enumerate(loader):
            if {test}:
                continue
            step(batch)
        {after}
"""


def found(test: str, after: str = "pass", bound: str = 'torch.load(path)["done"]') -> tuple[int, str] | None:
    text = TRAIN.format(test=test, after=after, bound=bound)
    told = skipping_test({"train.py": text}, SourceLine("train.py", 4, "train"))
    return (told[0].line, told[2]) if told is not None else None


@pytest.mark.parametrize("test", ["i < done", "i <= done"])
def test_a_bound_that_no_epoch_changes_leaves_out_the_same_batches_each_time(test: str) -> None:
    assert found(test) == (5, "done")


@pytest.mark.parametrize(
    ("test", "after"),
    [("i < done", "done = 0"), ("epoch == 0 and i < done", "pass"), ("i % 4", "pass"), ("i < 2", "pass")],
)
def test_a_bound_that_is_of_one_epoch_or_written_out_is_none(test: str, after: str) -> None:
    assert found(test, after) is None


def test_a_bound_that_was_not_loaded_holds_batches_out_on_purpose() -> None:
    assert found("i < done", bound="options.holdout") is None
    assert found("i < done", bound="4") is None


PROGRESS = """class Progress:
    def __init__(self):
        self.offset = 0

    def restore(self, path):
        state = torch.load(path)
        self.epoch, self.offset = state["epoch"], state["offset"]


def train(loader, progress):
    for epoch in range(progress.epoch, 9):
        for i, batch in {turns}:
            step(batch)
        {after}
"""


def found_in_slice(turns: str, after: str = "pass") -> tuple[int, str, str] | None:
    told = skipping_test({"train.py": PROGRESS.format(turns=turns, after=after)}, SourceLine("train.py", 12, "train"))
    return (told[0].line, told[1], told[2]) if told is not None else None


def test_a_slice_that_no_epoch_moves_leaves_out_the_same_batches_each_time() -> None:
    call = "islice(loader, progress.offset, None)"

    assert found_in_slice(f"enumerate({call}, start=progress.offset)") == (12, call, "progress.offset")
    assert found_in_slice("islice(enumerate(loader), progress.offset, None)") is not None


@pytest.mark.parametrize(
    ("turns", "after"),
    [
        ("enumerate(islice(loader, progress.offset, None))", "progress.offset = 0"),
        ("enumerate(islice(loader, progress.offset))", "pass"),
        ("enumerate(islice(loader, 4, None))", "pass"),
    ],
    ids=["set back", "an end", "written out"],
)
def test_a_slice_of_one_epoch_or_one_that_cuts_the_end_is_none(turns: str, after: str) -> None:
    assert found_in_slice(turns, after) is None
