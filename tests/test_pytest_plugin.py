"""A test function can run in several ranks; when they hang or fail, the test says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.job

SUITE = """
import pytest
import torch
import torch.distributed as dist


@pytest.mark.distdoctor(ranks=2)
def test_everybody_sums():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


@pytest.mark.distdoctor(ranks=2)
@pytest.mark.parametrize("size", [3])
def test_arguments_reach_the_ranks(size, tmp_path):
    assert torch.ones(size).sum() == size and tmp_path.is_dir()


@pytest.mark.distdoctor(ranks=2)
def test_one_rank_raises():
    dist.barrier()
    if dist.get_rank() == 1:
        raise KeyError("label")


@pytest.mark.distdoctor(ranks=2, timeout=12)
def test_one_rank_leaves_out_a_barrier():
    for step in range(3):
        dist.all_reduce(torch.ones(4))
        if not (step == 1 and dist.get_rank() == 1):
            dist.barrier()


def test_without_ranks_is_an_ordinary_test():
    assert True
"""


def test_a_suite_in_ranks_passes_and_fails_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)

    assert "3 passed" in done.stdout, done.stdout
    assert "2 failed" in done.stdout
    assert "DD110 rank 1: raised KeyError: 'label'" in done.stdout
    assert "distdoctor" in done.stdout.partition("test_one_rank_leaves_out_a_barrier")[2]
    assert "test_suite.py:" in done.stdout


def test_the_plugin_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        str(tmp_path),
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)

    assert done.returncode == 0, done.stdout


def test_a_script_is_diagnosed_by_a_fixture(diagnose) -> None:
    examples = Path(__file__).parent.parent / "examples"

    report = diagnose(examples / "forgotten_set_epoch.py", nproc=2)

    assert [finding["code"] for finding in report["findings"]] == ["DD301"]
