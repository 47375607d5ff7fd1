"""What is done with the padding of an evaluation: cut off, left out by the library, or gathered with the rest."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.cut_to_length import cuts_to_length, gathers_padding
from distdoctor.recording.source_line import SourceLine

EVALUATE = """def evaluate(accelerator, model, loader, data):
    seen = 0
    for batch in loader:
        found = {gathered}
        {cut}
        seen += len(found)
"""
LOOP = SourceLine("/job/train.py", 3, "evaluate")


def source(gathered: str, cut: str = "pass") -> dict[str, str]:
    return {"/job/train.py": EVALUATE.format(gathered=gathered, cut=cut)}


@pytest.mark.parametrize("gathered", ["accelerator.gather(model(batch))", "self.accelerator.reduce(count(batch))"])
def test_what_brings_all_results_together_is_found(gathered: str) -> None:
    assert gathers_padding(source(gathered), LOOP).line == 4


@pytest.mark.parametrize(
    "gathered", ["accelerator.gather_for_metrics(model(batch))", "torch.gather(model(batch), 1, x)", "model(batch)"]
)
def test_what_leaves_the_padding_out_or_gathers_nothing_is_none(gathered: str) -> None:
    assert not gathers_padding(source(gathered), LOOP)


def test_what_is_gathered_before_the_evaluation_is_none_of_it() -> None:
    text = (
        "def main(accelerator):\n    for x in train:\n        show(accelerator.gather(loss(x)))\n"
        "    for x in test:\n        count(x)\n"
    )
    assert not gathers_padding({"/job/train.py": text}, SourceLine("/job/train.py", 4, "main"))


@pytest.mark.parametrize(
    "cut",
    [
        "found = found[: len(data)]",
        "found = found[: len(loader.dataset) - seen]",
        "found = found[: accelerator.gradient_state.remainder]",
    ],
)
def test_a_cut_to_the_length_of_the_data_is_seen(cut: str) -> None:
    assert cuts_to_length(source("accelerator.gather(model(batch))", cut), LOOP)
    assert not cuts_to_length(source("accelerator.gather(model(batch))"), LOOP)
