"""Every planted illness is found, in a real job, and named as the drill says; the job without it is silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distdoctor import plugins
from distdoctor.offers import Drill

pytestmark = pytest.mark.job
DRILLS = plugins.load().drills


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of `distdoctor run` with these words."""
    command = [sys.executable, "-m", "distdoctor", "run", "--output-format", "json", "--run-dir", str(folder), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CI": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder.parent, env=env)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_a_planted_illness_is_found_first_and_its_rank_is_named(drill: Drill, tmp_path: Path) -> None:
    strategy = "ddp" if "ddp" in drill.strategies or not drill.strategies else drill.strategies[0]
    words = ["--strategy", strategy, "--nproc", str(drill.needs_ranks), "--fire-drill", drill.slug, "--no-evaluate"]

    _, report = run(tmp_path / "run", *words)

    first = report["findings"][0]
    assert first["code"] == drill.code, [finding["title"] for finding in report["findings"]]
    assert set(drill.ranks) <= set(first["ranks"])
    assert first["place"]["path"].endswith(".py")


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "pipeline", "amp", "model-parallel", "tensor", "hybrid"])
def test_a_healthy_training_is_silent(strategy: str, tmp_path: Path) -> None:
    ranks = "1" if strategy == "single" else "2"

    code, report = run(tmp_path / "run", "--strategy", strategy, "--nproc", ranks, "--epochs", "2")

    assert (code, report["findings"]) == (0, [])
    assert report["job"]["exit_code"] == 0
