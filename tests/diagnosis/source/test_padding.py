"""Where a program pads a batch to its longest sample."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.padding import padded_to_longest

COLLATE = """def collate(rows):
    {line}
    return inputs


def evaluate(scores):
    return max(scores)
"""


@pytest.mark.parametrize(
    "line",
    [
        "inputs = torch.zeros(len(rows), max(len(row) for row in rows))",
        "inputs = torch.full((len(rows), max(map(len, rows))), 0)",
        "inputs = pad_sequence(rows, batch_first=True)",
        "inputs = grown(rows, max(row.shape[0] for row in rows))",
    ],
)
def test_padding_to_the_longest_sample_is_found(line: str) -> None:
    found = padded_to_longest({"/job/data.py": COLLATE.format(line=line)})

    assert (found.line, found.function) == (2, "collate")


def test_a_fixed_length_is_none_and_two_functions_are_not_told_apart() -> None:
    fixed = COLLATE.format(line="inputs = torch.zeros(len(rows), 128)")
    padded = COLLATE.format(line="inputs = pad_sequence(rows)")

    assert not padded_to_longest({"/job/data.py": fixed})
    assert not padded_to_longest({"/job/data.py": padded, "/job/other.py": padded})
