"""The loop that all strategies share: its moments, its actions, its devices, and what it prints."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reference_training import losses, request, train

from distdoctor.errors import WrongUse
from distdoctor.workloads.progress import Progress
from distdoctor.workloads.request import TrainingRequest
from distdoctor.workloads.training import ACTIONS, MOMENTS, Training, device_of, in_groups

FEW = {"batch_size": 256, "epochs": 2}


def write_moments(training: Training) -> None:
    for moment in MOMENTS:
        training.on(moment, lambda here, moment=moment: here.notes.append(f"{moment} {here.epoch} {here.step}"))


@pytest.mark.job
def test_moments_come_in_their_order() -> None:
    (result,) = train(
        "ddp", 1, drills=("test_reference_training:write_moments",), batch_size=512, accumulate=2, epochs=1, steps=1
    )
    micro_step = ["micro_step_start 0 0", "before_backward 0 0", "after_backward 0 0"]
    assert result["notes"] == [
        "training_start 0 0",
        "epoch_start 0 0",
        "step_start 0 0",
        *micro_step,
        *micro_step,
        "before_optimizer_step 0 0",
        "after_step 0 0",
        "evaluation_start 0 1",
        "evaluation_end 0 1",
        "epoch_end 0 1",
        "training_end 0 1",
    ]


def forget_the_epoch(training: Training) -> None:
    training.replace("set_epoch", lambda sampler, epoch: None)


def double_the_loss_on_rank_one(training: Training) -> None:
    usual = training.scale_loss
    if training.rank == 1:
        training.replace("scale_loss", lambda loss: 2 * usual(loss))


@pytest.mark.job
def test_a_replaced_action_is_what_this_rank_does() -> None:
    healthy = train("ddp", 2, **FEW)
    same_order = train("ddp", 2, drills=("test_reference_training:forget_the_epoch",), **FEW)
    doubled = train("ddp", 2, drills=("test_reference_training:double_the_loss_on_rank_one",), **FEW)
    per_epoch = 1438 // 256
    assert same_order[0]["losses"][:per_epoch] == healthy[0]["losses"][:per_epoch]
    assert same_order[0]["losses"][per_epoch:] != healthy[0]["losses"][per_epoch:]
    assert doubled[0]["losses"][0] == healthy[0]["losses"][0]  # it bends the gradients, not the metric
    assert doubled[0]["losses"][1:] != healthy[0]["losses"][1:]


def check_that_the_model_goes_first(training: Training) -> None:
    models: list[weakref.ref[torch.nn.Module]] = []
    training.on("training_end", lambda here: models.append(weakref.ref(here.arrangement.model)))
    destroy = dist.destroy_process_group

    def checked() -> None:
        assert models[0]() is None
        Path(str(training.request.result), f"checked-{training.rank}").touch()
        destroy()

    dist.destroy_process_group = checked


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_the_model_is_gone_before_the_process_group(strategy: str, tmp_path: Path) -> None:
    drills = ("test_reference_training:check_that_the_model_goes_first",)
    train(strategy, 2, drills=drills, steps=2, evaluate=False, result=str(tmp_path))

    assert sorted(path.name for path in tmp_path.glob("checked-*")) == ["checked-0", "checked-1"]


def test_every_action_exists_and_an_unknown_one_is_refused() -> None:
    training = Training(request("ddp"))
    assert all(callable(getattr(training, action)) for action in ACTIONS)
    with pytest.raises(WrongUse, match="no action 'set_epok'"):
        training.replace("set_epok", print)
    with pytest.raises(WrongUse, match="no moment 'step_begin'"):
        training.on("step_begin", print)


def test_incomplete_groups_are_left_out() -> None:
    assert list(in_groups(2, range(5))) == [[0, 1], [2, 3]]


def test_without_a_gpu_gloo_trains_on_the_cpu_and_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_of(None, 0) == device_of("gloo", 3) == torch.device("cpu")
    with pytest.raises(WrongUse, match="local rank 0 has no GPU: 0 are visible"):
        device_of("nccl", 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_a_gpu_each_rank_takes_its_own() -> None:
    assert device_of(None, 0) == torch.device("cuda", 0)
    with pytest.raises(WrongUse, match="has no GPU"):
        device_of("nccl", torch.cuda.device_count())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_moves_and_a_pipe_one_line_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    terminal, pipe = Terminal(), io.StringIO()
    shown = [Progress(shown=True, steps=2, stream=stream) for stream in (terminal, pipe)]
    for step in range(2):
        now += 1.0
        for progress in shown:
            progress.step(0, step, lambda: 0.5, 1234.0)
    for progress in shown:
        progress.epoch(0, 0.25, 0.5, 1234.0)
    assert terminal.getvalue() == (
        "\r\x1b[Kepoch 1  step 1/2  loss 0.5000  1,234 samples/s per rank"
        "\r\x1b[Kepoch 1  step 2/2  loss 0.5000  1,234 samples/s per rank"
        "\r\x1b[Kepoch 1  loss 0.2500  test accuracy 50.0%  1,234 samples/s per rank\n"
    )
    assert pipe.getvalue() == "epoch 1  loss 0.2500  test accuracy 50.0%  1,234 samples/s per rank\n"


def test_other_ranks_show_nothing() -> None:
    stream = io.StringIO()
    Progress(shown=False, steps=1, stream=stream).epoch(0, 0.0, 1.0, 1.0)
    assert stream.getvalue() == ""


def launched(command: list[str], asked: TrainingRequest, folder: Path) -> subprocess.CompletedProcess[str]:
    asked.write(folder / "request.json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", *command, "distdoctor.workloads.train", str(folder / "request.json")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=folder,
    )


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_torchrun_starts_it_and_every_rank_leaves_its_result(ranks: int, tmp_path: Path) -> None:
    from dataclasses import replace

    asked = replace(request("ddp", **FEW), result=str(tmp_path / "results"))
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    done = launched(launcher, asked, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"ddp on {ranks} rank")
    assert "2 epochs, 10 steps" in done.stdout
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "results").iterdir())]
    assert [result["rank"] for result in results] == list(range(ranks))
    assert len({result["parameters_sha256"] for result in results}) == 1
    assert len(losses(results[0])) == 10


@pytest.mark.job
def test_without_a_launcher_it_is_a_world_of_one(tmp_path: Path) -> None:
    done = subprocess_training("fsdp", tmp_path, **FEW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fsdp on 1 rank, cpu, 2 epochs, 10 steps")


@pytest.mark.job
def test_what_cannot_be_trained_ends_with_two_lines_and_exit_code_two(tmp_path: Path) -> None:
    done = subprocess_training("tensor", tmp_path, model="convnet")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: Sequential does not say how its layers may be split",
        "Use --model mlp or gpt, or give the model a method `tensor_plan()` that returns "
        "{layer name: 'colwise' or 'rowwise'}.",
    ]


def subprocess_training(strategy: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return launched([], request(strategy, **options), folder)
