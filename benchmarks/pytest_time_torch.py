"""A part of torch's own gloo tests, as torch runs them (a spawn per test) and moved to the mark. `pytest_time.py` runs it; needs
the package expecttest, which torch's test harness imports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import pytest
import torch.distributed as dist
from pytest_time import OF_TORCH
from torch.testing._internal.distributed import distributed_test


class Moved(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The bodies alone: ranks are the mark's."""

    __test__ = False


class TestOfTorch(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """As test/distributed/test_distributed_spawn.py of torch has it; 2 ranks by WORLD_SIZE."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


@pytest.fixture
def directories() -> Iterator[None]:
    distributed_test.initialize_temp_directories()
    distributed_test.Barrier.init()
    yield
    distributed_test.cleanup_temp_dir()


@pytest.mark.distdoctor(nproc=2)
@pytest.mark.parametrize("name", OF_TORCH)
def test_moved(name: str, directories: None) -> None:
    test = Moved(name)
    test.rank = dist.get_rank()  # a rank runs the body; without one it would spawn
    getattr(test, name)()
