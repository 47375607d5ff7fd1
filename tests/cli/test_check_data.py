"""`distdoctor check-data` end to end: the answer first, loaders read without training, and a job that is resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_command
import pytest

RESUMABLE = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

stop, saved = "--stop" in sys.argv, "c.pt"
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = TensorDataset(torch.arange(80.0).reshape(-1, 1))
sampler = DistributedSampler(data)
first, skip = 0, 0
if "--resume" in sys.argv:
    state = torch.load(saved)
    first, skip = state["epoch"], state["steps"] if "--right" in sys.argv else 0
for epoch in range(first, 2):
    sampler.set_epoch(epoch)
    order = list(sampler)[skip * 4 :]
    for step, (batch,) in enumerate(DataLoader(data, batch_size=4, sampler=order), skip + 1):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if stop and (epoch, step) == (1, 4):
            if dist.get_rank() == 0:
                torch.save({"epoch": epoch, "steps": step}, saved)
            break
        if "--often" in sys.argv and step % 3 == 0 and dist.get_rank() == 0:
            torch.save({"epoch": epoch, "steps": step}, saved)
    skip = 0
del model, optimizer
dist.destroy_process_group()
"""
LOADERS = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def make():
    data = TensorDataset(torch.arange(101.0))
    sampler = DistributedSampler(data, seed=dist.get_rank())
    return {
        "train": DataLoader(data, batch_size=8, sampler=sampler),
        "val": DataLoader(data, batch_size=8),
        "bare": DataLoader(data, batch_size=8, shuffle=True),
        **({"of rank 0 alone": DataLoader(data, batch_size=8, sampler=range(0))} if dist.get_rank() == 0 else {}),
    }
"""


def check_data(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CI": "true", "PYTHONPATH": path}
    return forked_command.run(["check-data", "--run-dir", str(folder / "run"), *words], folder, env, timeout=200)


def unseen(document: dict[str, Any]) -> list[str]:
    """Why the resume could not be judged."""
    return [one["reason"] for one in document["not_examined"] if one["code"] == "DD704"]


@pytest.mark.job
def test_loaders_are_read_without_training_and_the_answer_comes_first(tmp_path: Path) -> None:
    (tmp_path / "my_loaders.py").write_text(LOADERS)
    done = check_data(tmp_path, "--dry", "--loader", "my_loaders:make", "--epochs", "3")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0].startswith("not every rank reads the right data: DD303 ranks 0-1 share")
    assert "  2      0     51     51        -        its own" in done.stdout
    assert "DD304 warning  ranks 0-1  my_loaders.py:13 make  ranks 0-1 each draw the whole dataset" in done.stdout
    assert "SequentialSampler, 101 samples of TensorDataset, evaluates" in done.stdout
    assert "check-data --loader reads for ranks 0-1 as for replicas" in " ".join(done.stdout.split())
    assert "DistributedDataParallel" not in done.stdout
    assert "walk_loaders.py" not in done.stdout


@pytest.mark.job
@pytest.mark.parametrize("right", [False, True])
def test_a_script_that_resumes_at_the_start_of_the_epoch_repeats_samples(right: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMABLE)
    resume = "--resume --right" if right else "--resume"
    ranks = "1" if right else "2"  # of two that do it right tells the next test
    words = ["--nproc", ranks, "--resume", "--stop-args=--stop", f"--resume-args={resume}", "--output-format", "json"]
    done = check_data(tmp_path, *words, "train.py")
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    findings = {one["code"]: one["evidence"] for one in document["findings"]}
    assert unseen(document) == []
    assert sorted(findings) == ([] if right else ["DD704"]), done.stderr
    assert right or (findings["DD704"]["repeated"], findings["DD704"]["lost"]) == (32, 0)
    assert ("continues where it stopped" if right else "restarts epoch 1 from its first sample") in done.stderr


@pytest.mark.job
def test_a_script_that_is_killed_and_goes_on_from_its_last_checkpoint_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMABLE)
    words = ["--nproc", "2", "--resume", "--kill-at", "15", "--resume-args=--resume --right", "--output-format", "json"]
    done = check_data(tmp_path, *words, "train.py", "--often")
    document = json.loads(done.stdout)
    assert unseen(document) == []
    assert [one["code"] for one in document["findings"]] == [], done.stderr
    assert "resume after step 15, 24 of 80 samples into epoch 1" in done.stderr
    assert "continues from its last checkpoint; 24 samples were drawn after it" in done.stderr


def test_to_kill_goes_without_arguments_to_stop(say: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    said = say("check-data", "--resume", "--kill-at", "5", "--stop-args=--stop", "--resume-args=--resume", "train.py")
    assert said.code == 2  # type: ignore[attr-defined]
    assert "--kill-at 5 goes with a script of yours" in said.err  # type: ignore[attr-defined]


def test_dry_needs_a_loader(say: Callable[..., object]) -> None:
    said = say("check-data", "--dry")
    assert (said.code, said.err.splitlines()[0]) == (  # type: ignore[attr-defined]
        2,
        "distdoctor: --dry needs to know which loaders to read",
    )


def test_resume_of_a_script_needs_its_own_words(say: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    said = say("check-data", "--resume", "train.py")
    assert said.code == 2  # type: ignore[attr-defined]
    assert "how your script saves and resumes" in said.err  # type: ignore[attr-defined]
