"""`distdoctor compare` really trains, and says what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest


def test_help_needs_no_torch(modules_after: Callable[..., list[set[str]]]) -> None:
    assert "torch" not in modules_after(["compare", "--help"])[0]


def test_an_unknown_strategy_is_wrong_use(say: Callable[..., object]) -> None:
    said = say("compare", "--strategies", "single,zero4")
    assert said.code == 2  # type: ignore[attr-defined]
    assert "there is no strategy zero4" in said.err  # type: ignore[attr-defined]


@pytest.mark.job
def test_one_process_and_two_replicas_are_measured_and_train_the_same(tmp_path: Path) -> None:
    """A third one does not fit the batch: its row says why, and the exit code tells."""
    words = ["--strategies", "ddp,pipeline", "--steps", "12", "--batch", "30", "--output-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "compare", *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    single, ddp, pipeline = found["strategies"]
    assert [single["strategy"], ddp["strategy"], pipeline["strategy"]] == ["single", "ddp", "pipeline"]
    assert pipeline["failed"] == "a batch of 30 samples does not divide into 4 micro-batches"
    assert ddp["agrees"]
    assert ddp["loss_apart"] < 8e-5
    assert single["bytes_sent_per_step"] == 0
    # All gradients once, and two 64-bit metrics.
    parameters = (64 * 128 + 128) + (128 * 128 + 128) + (128 * 10 + 10)
    assert ddp["bytes_sent_per_step"] >= 4 * parameters
    assert 0 < ddp["share_waiting_for_communication"] < 1
    assert len(ddp["peak_bytes"]) == 2
    assert all(peak > 100 << 20 for peak in ddp["peak_bytes"])
    assert single["samples_per_second"] == pytest.approx(30 / single["step_seconds"])


@pytest.mark.job
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_it_trains_ends_with_it(tmp_path: Path, number: int) -> None:
    words = [sys.executable, "-m", "distdoctor", "compare", "--strategies", "ddp", "--nproc", "2"]
    process = psutil.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (children := process.children(recursive=True)):
        assert process.poll() is None
        time.sleep(0.05)

    process.send_signal(number)

    assert process.wait(60) != 0
    assert psutil.wait_procs(children, 60)[1] == []
