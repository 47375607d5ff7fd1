"""What tells the rows apart that a model is given, however they lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from distdoctor.probe.samples.given_rows import GivenRows

TOKENS = torch.arange(60).view(5, 12)
NOBODY: Any = None


@pytest.mark.parametrize(
    "rows",
    [
        TOKENS,
        TOKENS[:, :-1],
        TOKENS[:, 1:],
        TOKENS[1:3],
        TOKENS[::2],
        TOKENS[:, 4:5],
        TOKENS[0].expand(3, 12),
        TOKENS[0],
    ],
    ids=[
        "whole",
        "without the last",
        "without the first",
        "some",
        "every other",
        "a column",
        "one again",
        "of one number",
    ],
)
def test_a_part_of_a_batch_reads_as_its_copy_does(rows: torch.Tensor) -> None:
    found = GivenRows._rows(NOBODY, rows)

    assert found is not None
    assert found == GivenRows._rows(NOBODY, rows.clone(memory_format=torch.contiguous_format))
    assert len(found) == len(rows)


@pytest.mark.parametrize(
    "rows",
    [TOKENS.t(), torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last), torch.zeros(0, 3), torch.zeros(3, 0)],
    ids=["turned", "channels last", "none", "empty ones"],
)
def test_rows_whose_bytes_are_strewn_are_left_out(rows: torch.Tensor) -> None:
    assert GivenRows._rows(NOBODY, rows) is None
