"""DeepSpeed's tests of distributed functions, with the mark instead of a pool of processes per test: a pytest plugin, loaded by
`-p moved_deepspeed` in a checkout's folder `tests`; no test is edited. `moved_suites.py` runs it; needs the package deepspeed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

OWN = os.environ.get("HARNESS") == "own"


_moved: set[Any] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """DeepSpeed tells a test of several ranks by its class, and their number by the class or the mark world_size."""
    cls = getattr(item, "cls", None)
    if OWN or not getattr(cls, "is_dist_test", False):
        return
    mark = item.get_closest_marker("world_size")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    nproc = mark.args[0] if mark is not None else parameters.get("world_size", cls.world_size)
    nproc = nproc[-1] if isinstance(nproc, list) else nproc
    item.add_marker(pytest.mark.distdoctor(nproc=nproc, timeout=100, join=False))
    item.fixturenames.append("deepspeed_group")
    _moved.add(cls)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.option.durations_min = 0.005
    for cls in _moved:
        cls.is_dist_test = False  # its conftest would start a pool


@pytest.fixture
def deepspeed_group(request: pytest.FixtureRequest, dist: ModuleType) -> Iterator[None]:
    """In each rank, as DistributedExec._dist_run of DeepSpeed has it."""
    import deepspeed

    cls: Any = request.cls
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]
    if cls.init_distributed:
        deepspeed.init_distributed(dist_backend=cls.backend)
    yield
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
