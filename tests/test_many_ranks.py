"""Real recordings of two ranks as those of 256, on 32 hosts: one verdict, the right rank, and how long it took (`pytest -rP`)."""

from __future__ import annotations

import importlib.util
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import WARNING
from distdoctor.recording.bundle import pack, unpack
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import VERSION
from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job
ROOT = Path(__file__).parent.parent
RANKS, ODD = 256, 137


def _benchmark() -> ModuleType:
    """`benchmarks/many_ranks.py`, which is no module of the package."""
    name = "many_ranks"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "many_ranks.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(name: str, folder: Path) -> Recording:
    """A real recording of two ranks, of which rank 1 has the illness."""
    with tarfile.open(ROOT / "tests" / "recording" / "golden" / str(VERSION) / f"{name}.tar.xz") as file:
        file.extractall(folder, filter="data")
    return read_run(folder)


def verdict(job: Recording) -> list[tuple[str, tuple[int, ...]]]:
    began = time.process_time()
    found = examine(job, plugins.load().checks.values()).at_least(WARNING)
    print(f"{len(job.ranks)} ranks: all checks in {time.process_time() - began:.2f} CPU s")
    return [(finding.code, finding.ranks) for finding in found]


@pytest.mark.parametrize(
    ("name", "ranks_with_it", "expected"),
    [
        ("hang", (ODD,), [("DD101", (ODD,))]),
        ("replicas", (ODD,), [("DD203", (ODD,))]),
        ("replicas", (), []),
    ],
    ids=["one skips a collective", "one has drifted", "none"],
)
def test_one_rank_of_256_is_named_and_none_where_none_is_odd(
    name: str, ranks_with_it: tuple[int, ...], expected: list[tuple[str, tuple[int, ...]]], tmp_path: Path
) -> None:
    two, many = recorded(name, tmp_path), _benchmark()

    job = many.job_of(two.ranks[0], RANKS, dict.fromkeys(ranks_with_it, two.ranks[1]))
    job = replace(job, streams=job.streams - {"samples"})  # 256 times what one rank drew would be an illness of its own
    hosts = [many.host_of(job, number) for number in range(RANKS // many.RANKS_OF_A_HOST)]

    assert verdict(job) == expected
    assert verdict(merged([unpack(pack(host), "host") for host in hosts])) == expected


def test_all_checks_take_time_that_grows_with_the_ranks_and_ten_seconds_at_1024(tmp_path: Path) -> None:
    two, many = recorded("replicas", tmp_path), _benchmark()

    found = [many.measure(two.ranks[0], ranks) for ranks in (128, 1024)]

    assert found[-1].checks_seconds <= 10  # CPU seconds; 3 on a machine of 2026
    assert many.exponent(found) < 1.4  # 1.0; checks that compare each rank with each other make it 2
    assert all(one.bytes_of_a_rank < 2048 for one in found)
