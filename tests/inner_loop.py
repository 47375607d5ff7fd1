"""What keeps the inner loop (`-m "not job"`) short: files that hold real jobs alone are not imported for it, and random cases
are fewer than in CI. What lives as long as the session is set aside from collections of garbage, in CI too."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

THOROUGH = "thorough" in (os.environ.get("HYPOTHESIS_PROFILE"), "thorough" if os.environ.get("CI") else "quick")
"""As for the examples of hypothesis (conftest.py): CI, or whoever asks for it."""

_JOBS_ALONE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.job\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Their imports (FSDP, pipelines, Lightning) are a third of what collecting costs, and each worker collects."""
    if config.option.markexpr != "not job" or not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    return bool(_JOBS_ALONE.search(collection_path.read_text("utf-8"))) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay to the end: Python looked through their half a million objects at every full collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def drawn(count: int, since: int = 0) -> range:
    """The numbers of random cases, from `since` on: `count` of them in CI, a fifth while one works."""
    return range(since, since + (count if THOROUGH else -(-count // 5)))
