"""What all tests share: this folder is importable (`from jobs import run_ranks`), ranks do not fight for cores, only real jobs
are run again when they fail, and no process outlives the session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import say  # noqa: F401 - a fixture for all
from hypothesis import HealthCheck, settings
from inner_loop import pytest_collection, pytest_ignore_collect  # noqa: F401 - hooks for all
from leftovers import Leftovers
from reruns import Reruns

os.environ.setdefault("OMP_NUM_THREADS", "1")
FEWER_COLLECTIONS = str(Path(__file__).parent / "fewer_collections")
if FEWER_COLLECTIONS not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (FEWER_COLLECTIONS, os.environ.get("PYTHONPATH"))))

# Quick while one works, thorough in CI. `--hypothesis-profile NAME` on the command line wins over both.
settings.register_profile("quick", max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("thorough" if os.environ.get("CI") else "quick"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that xdist's workers report to, or the only one
        config.pluginmanager.register(Leftovers(), "leftovers")
        config.pluginmanager.register(Reruns(), "reruns-of-jobs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A failed job has to fail three times: gloo itself sometimes aborts a rank on its way out. `--reruns 0` turns that off."""
    if config.getoption("reruns") == 0:
        return
    for item in items:
        if item.get_closest_marker("job") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1))
