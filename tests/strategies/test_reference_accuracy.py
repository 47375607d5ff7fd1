"""The reference training learns what it is there to learn."""

from __future__ import annotations

import pytest
from reference_training import train


@pytest.mark.job
def test_ddp_reads_the_digits_within_five_epochs() -> None:
    results = train("ddp", 2)
    assert results[0]["accuracies"][-1] >= 0.95
    assert len(results[0]["losses"]) == 5 * (1438 // 32)
