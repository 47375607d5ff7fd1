"""Recordings, logs, RAS and dumps damaged on purpose: no health, no crash, and no more time than one may take."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import fuzz
import pytest
from inner_loop import drawn
from seeds import run_folder

HERE = Path(__file__).parent


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_hundreds_of_damaged_recordings_do_no_harm(first: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = run_folder("healthy", tmp_path_factory)

    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), str(seed), "--inputs", "100", "--seed", str(first)],
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("family", "inputs"),
    [
        ("log", 150),
        ("ras-text", 200),
        ("ras-json", 300),
        ("dumps", 20),
        ("clogs", 100),
        ("stacks", 150),
        ("bundle", 10),
        ("checkpoint", 50),
    ],
)
def test_damaged_texts_and_dumps_do_no_harm(family: str, inputs: int) -> None:
    assert list(fuzz.fuzz(partial(fuzz.wrong_text, family), drawn(inputs))) == []


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("ras-text", 110410148),  # 28,000 ranks, each compared with the furthest of all
        ("log", 120006475),  # lines of 40,000 spaces
    ],
)
def test_what_once_took_too_long_does_no_more(family: str, seed: int) -> None:
    assert list(fuzz.fuzz(partial(fuzz.wrong_text, family), range(seed, seed + 1))) == []


@pytest.mark.parametrize(("queued", "left"), [(40.0, False), (10.0, True)], ids=["for a core", "for something else"])
def test_a_minute_of_waiting_is_too_long_unless_others_had_the_cores(
    queued: float, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, queued])
    monkeypatch.setattr(fuzz, "queued_seconds", lambda: next(clock))

    def examined(number: int, work: Path) -> str:
        try:
            signal.raise_signal(signal.SIGALRM)
        except fuzz.TooLong:
            return "left"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return "went on"

    assert list(fuzz.fuzz(examined, range(1))) == [(0, "left" if left else "went on")]
