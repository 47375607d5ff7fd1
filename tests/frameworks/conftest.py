"""What the jobs of frameworks share in a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bare_runs import BareRuns


@pytest.fixture(scope="session")
def bare() -> Iterator[BareRuns]:
    """What the ranks of a job return without the probe."""
    runs = BareRuns()
    yield runs
    runs.close()
