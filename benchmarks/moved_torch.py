"""torch's own tests of its gloo backend, with the mark instead of a spawn per test. `moved_suites.py` runs it; needs the package
expecttest. The four edits: ranks and group are the mark's, the scratch folder is made before the fork, a skip is no exit code."""

from __future__ import annotations

import functools
import os
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import pytest
import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.distributed import distributed_test

SKIPS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class AsTorchRunsThem(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """test/distributed/test_distributed_spawn.py of torch, in two ranks by WORLD_SIZE."""

    __test__ = os.environ.get("HARNESS") == "own"

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


@pytest.mark.distdoctor(nproc=2, timeout=100)
class TestMoved(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    __test__ = os.environ.get("HARNESS") != "own"

    @pytest.fixture(autouse=True)
    def scratch(self) -> Iterator[None]:
        distributed_test.initialize_temp_directories()
        distributed_test.Barrier.init()
        yield
        distributed_test.cleanup_temp_dir()

    def setUp(self) -> None:
        self.rank, self.file_name = dist.get_rank(), os.path.join(os.environ["TEMP_DIR"], "store")

    def tearDown(self) -> None:
        self._barrier()

    def join_or_run(self, body: Callable[[], object]) -> Callable[[], object]:
        @functools.wraps(body)
        def in_rank(_: unittest.TestCase) -> object:
            try:
                return body()
            except SystemExit as left:
                raise unittest.SkipTest(SKIPS.get(int(left.code or 0), "")) from None

        return types.MethodType(in_rank, self)
