"""What lint knows about the file in which a job failed is said below the report, and nothing that is said already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Said

from distdoctor.cli.source_hints import source_hints
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.recording.recording import Job, SourceLine

SCRIPT = """\
import torch, torch.distributed as dist
def step(net, batch, optimizer, scaler):
    loss = net(batch).sum()
    if dist.get_rank() == 1:
        raise ValueError("the loss is too large")
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
"""
TRAIN = """
dist.init_process_group("gloo")
step(torch.nn.Linear(2, 1), torch.ones(1, 2), None, None)
"""
FAILED = Finding("raised ValueError", (1,), place=SourceLine("train.py", 5, "step"), severity=ERROR, code="DD110")
SEEN = "lint sees more in train.py:7: DD803 gradients are clipped while they are still scaled (likely)"


def test_what_the_source_of_the_failing_file_shows_is_a_hint() -> None:
    assert source_hints(Diagnosis(Job(), (FAILED,)), {"train.py": SCRIPT}) == [SEEN]


@pytest.mark.parametrize(
    ("findings", "path", "ignored"),
    [
        ((FAILED, dataclasses.replace(FAILED, code="DD803")), "train.py", ()),  # said already
        ((FAILED,), "train.py", ("DD803",)),
        ((FAILED,), "other.py", ()),  # a file in which nothing failed
        ((), "train.py", ()),
    ],
)
def test_nothing_is_said_twice_or_unasked(findings: tuple[Finding, ...], path: str, ignored: tuple[str, ...]) -> None:
    sources = {"train.py": "import torch\n", path: SCRIPT}

    assert source_hints(Diagnosis(Job(), findings), sources, ignored) == []


def test_of_a_large_program_the_failing_file_alone_is_read() -> None:
    sources = {"train.py": SCRIPT, "large.py": "import torch\n" + "x = 1\n" * 200_000}

    assert source_hints(Diagnosis(Job(), (FAILED,)), sources) == [SEEN]


@pytest.mark.job
def test_a_job_that_fails_ends_with_what_lint_knows(tmp_path: Path, say: Callable[..., Said]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + TRAIN)

    done = say("run", "--nproc", 2, "train.py")

    assert done.code == 1
    assert f"distdoctor: {SEEN}" in done.err.splitlines()
