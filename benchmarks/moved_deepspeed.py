"""DeepSpeed's tests of distributed functions, with the mark instead of a pool of processes per test: a pytest plugin, loaded by
`-p moved_deepspeed` in a checkout's folder `tests`; no test is edited. `moved_suites.py` runs it; needs the package deepspeed.

What the ranks would compile within the limit of a test is compiled before the first one, which takes minutes the first time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

OWN = os.environ.get("HARNESS") == "own"
os.environ.setdefault(
    "LOCAL_SIZE", "4"
)  # its accelerator "cpu" counts NUMA nodes otherwise, and its harness skips for lack of them
BUILD = """
from deepspeed.accelerator import get_accelerator
for name in ("ShareMemCommBuilder", "FusedAdamBuilder"):
    builder = get_accelerator().create_op_builder(name)
    if builder is not None and builder.is_compatible():
        builder.load()
"""

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
    if _moved:
        subprocess.run([sys.executable, "-c", BUILD], stdout=subprocess.DEVNULL, check=True)


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
