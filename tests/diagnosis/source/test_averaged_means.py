"""What the source averages over the ranks although each rank has averaged it, and what it adds up."""

from __future__ import annotations

from textwrap import indent

import pytest

from distdoctor.diagnosis.source.averaged_means import averaged_means
from distdoctor.recording.source_line import SourceLine

COUNTS = """\
def evaluate(model, loader):
    right = count = 0
    for inputs, labels in loader:
        right += (model(inputs) == labels).sum().item()
        count += len(labels)
"""
LOOP = SourceLine("main.py", 3, "evaluate")
MEANS = {
    "divided": "score = torch.tensor(right / count)\ndist.all_reduce(score)\nreturn score / dist.get_world_size()",
    "in place": "score = torch.tensor([right / max(count, 1)])\ndist.all_reduce(score)\nscore.div_(world_size)\nreturn score",
    "asked for": "score = torch.tensor(right / count)\ndist.all_reduce(score, op=dist.ReduceOp.AVG)\nreturn score",
    "accelerate": "return accelerator.reduce(torch.tensor(right / count), 'mean')",
}
SUMS = {
    "both": "both = torch.tensor([right, count])\ndist.all_reduce(both)\nreturn both[0] / both[1]",
    "by all": "share = torch.tensor(right / world_size)\ndist.all_reduce(share)\nreturn share",
    "counted": "total = torch.tensor(count)\ndist.all_reduce(total)\nreturn total / world_size",
}


@pytest.mark.parametrize("how", MEANS)
def test_a_mean_of_means_is_found_and_belongs_to_its_loop(how: str) -> None:
    (found,) = averaged_means({"main.py": COUNTS + indent(MEANS[how], "    ")})
    assert found.quotient.startswith("right / ")
    assert found.is_of_loop(LOOP)
    assert not found.is_of_loop(SourceLine("main.py", 20, "train"))


@pytest.mark.parametrize("how", SUMS)
def test_sums_are_not(how: str) -> None:
    assert averaged_means({"main.py": COUNTS + indent(SUMS[how], "    ")}) == []


TRAINED_AND_EVALUATED = """\
def main(model, batches, rows):
    total = count = 0
    for inputs in batches:
        total += model(inputs).item()
        count += 1
    model.eval()
    errors = model(rows)
    seen = {averaged}
    dist.all_reduce(seen)
    seen /= world_size
"""


@pytest.mark.parametrize(("averaged", "belongs"), [("errors.mean()", True), ("torch.tensor(total / count)", False)])
def test_a_mean_belongs_to_the_rows_that_it_is_made_of_and_not_to_those_that_come_later(
    averaged: str, belongs: bool
) -> None:
    (found,) = averaged_means({"main.py": TRAINED_AND_EVALUATED.format(averaged=averaged)})
    assert found.is_of(SourceLine("main.py", 7, "main")) is belongs
