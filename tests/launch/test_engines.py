"""Dumps that an executor reads give the recording that this machine's processes give, bit for bit: also real clusters' ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distdoctor
from distdoctor.errors import CouldNotLook, WrongUse
from distdoctor.launch.engines import engine
from distdoctor.recording.flight import reading
from distdoctor.recording.flight.reading import read_dumps
from distdoctor.recording.recording import Recording

LINES = {"nccl:all_reduce": 41, "nccl:_all_gather_base": 44}


def entry(number: int, op: str, done: bool, sizes: int) -> dict[str, Any]:
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": op, "time_created_ns": 10**18 + number * 10**6, "input_sizes": [[sizes]],
        "input_dtypes": ["Float"], "output_sizes": [[sizes]], "output_dtypes": ["Float"], "is_p2p": False, "timeout_ms": 600000,
        "state": "completed" if done else "scheduled", "retired": done, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 10**18 + number * 10**6 + 500 if done else None,
        "frames": [{"name": "step", "filename": "/job/train.py", "line": LINES[op]}],
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Dumps of 20 ranks of which rank 7 skipped an all_reduce; one file is torn."""
    for rank in range(20):
        ops = ["nccl:all_reduce", "nccl:_all_gather_base"] * 4
        ops = ops[:5] + ops[6:] if rank == 7 else ops
        entries = [entry(number, op, number < 6, 8 + number % 3) for number, op in enumerate(ops, 1)]
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(21)))}}
        content = {"version": "2.10", "comm_lib_version": "2.27.5", "pg_config": config, "pg_status": {}}
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(content | {"entries": entries}))
    (tmp_path / "rank_20").write_bytes(b"\x80\x02torn")
    return tmp_path


def facts(recording: Recording) -> list[Any]:
    """Everything in a recording that was made of dumps, to the last bit."""
    ranks = [
        (rank, np.asarray(log.calls).tobytes(), log.groups.tobytes(), log.texts, dict(log.lost), dict(log.environment))
        for rank, log in recording.ranks.items()
    ]
    return [recording.job, ranks, recording.troubles, dict(recording.backend)]


def test_an_executor_gives_the_recording_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = list(folder.iterdir())
    alone = read_dumps(paths)
    monkeypatch.setattr(reading, "MOST_OF_A_BATCH", 3)

    with ThreadPoolExecutor(3) as executor:
        together = read_dumps(paths, executor)
        report = distdoctor.diagnose(folder, executor=executor)

    assert facts(together) == facts(alone)
    assert [trouble.rank for trouble in together.troubles] == [20]
    assert report.to_json() == distdoctor.diagnose(folder).to_json()
    assert 7 in report.findings[0].ranks


class _Lost(Executor):
    """A cluster whose workers have gone."""

    def submit(self, *args: Any, **values: Any) -> Future[Any]:
        raise ConnectionError("no worker answers")


def test_an_executor_that_fails_is_one_sentence(folder: Path) -> None:
    with pytest.raises(CouldNotLook, match="_Lost could not read 21 dumps: ConnectionError: no worker answers"):
        read_dumps(folder.iterdir(), _Lost())


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("dask", "distributed"), ("mpi", "mpi4py")])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(WrongUse, match=f"--engine {name} needs {module}") as raised, engine(name):
        pass

    assert f"distdoctor[{name}]" in raised.value.way_out


@pytest.mark.job
@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("dask", "distributed"), ("mpi", "mpi4py")])
def test_a_real_cluster_gives_the_report_of_this_machine(name: str, module: str, folder: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (pip install 'distdoctor[{name}]')")
    starter = [sys.executable, "-m"]
    if name == "mpi":
        mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:/usr/bin")
        if mpiexec is None:
            pytest.skip("mpi4py is installed, and no mpiexec (pip install mpich)")
        starter = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", "-m"]
    words = ["distdoctor", "examine", "--output-format", "json", "--fail-on", "never"]

    here = subprocess.run([sys.executable, "-m", *words, str(folder)], capture_output=True, timeout=120, check=False)
    there = subprocess.run(
        [*starter, *words, "--engine", name, str(folder)], capture_output=True, timeout=240, check=False
    )

    assert b"DD1" in here.stdout
    assert there.stdout == here.stdout, there.stderr.decode()
