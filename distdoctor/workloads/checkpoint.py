"""Checkpoints: one file that rank 0 writes where every rank holds the whole model, else a folder that all ranks write.

Either is complete or absent at its path: it is written beside it, and moved there when it is whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from distdoctor.errors import WrongUse
from distdoctor.workloads.arrangement import Arrangement
from distdoctor.workloads.request import TrainingRequest

# Flattened, an entry of the optimizer's state is found by its parameter's name, whichever rank has it.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class ResumableTraining(Protocol):
    """What of a training is saved, and what says where."""

    request: TrainingRequest
    arrangement: Arrangement
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    rank: int
    epoch: int
    step: int


def save(training: ResumableTraining, path: str, *, epoch: int, steps_done: int) -> None:
    """Write the model, the optimizer and how far the training has come. All ranks call it."""
    progress = {"epoch": epoch, "steps_done": steps_done, "step": training.step, "scaler": training.scaler.state_dict()}
    if training.arrangement.sharded:
        _save_folder(training, Path(path), progress)
    elif training.rank == 0:
        _save_file(training, Path(path), progress)
    if not training.arrangement.alone:
        dist.barrier()  # nobody goes on to read what rank 0 has not yet moved to its place


def load(training: ResumableTraining, path: str) -> int:
    """Put the checkpoint's state in place on every rank; returns the steps that its epoch had done."""
    if training.arrangement.sharded != Path(path).is_dir():
        kind = "a folder of shards" if Path(path).is_dir() else "one whole file"
        raise WrongUse(
            f"{path} is {kind}, which {training.request.strategy} does not read",
            way_out="Resume with the strategy that saved it.",
        )
    progress = _load_folder(training, path) if training.arrangement.sharded else _load_file(training, path)
    training.epoch, training.step = progress["epoch"], progress["step"]
    training.scaler.load_state_dict(progress["scaler"])
    steps_done: int = progress["steps_done"]
    return steps_done


def _save_file(training: ResumableTraining, path: Path, progress: dict[str, Any]) -> None:
    state = {
        "model": training.arrangement.module.state_dict(),  # the module's own, so that it loads without any wrapper
        "optimizer": training.optimizer.state_dict(),
        "progress": progress,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def _load_file(training: ResumableTraining, path: str) -> dict[str, Any]:
    # Without map_location, every rank would load onto the GPU of the rank that saved.
    state = torch.load(path, map_location=training.device, weights_only=True)
    training.arrangement.module.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    progress: dict[str, Any] = state["progress"]
    return progress


def _save_folder(training: ResumableTraining, path: Path, progress: dict[str, Any]) -> None:
    model, optimizer = get_state_dict(training.arrangement.module, training.optimizer, options=FLAT)
    unfinished = path.with_name(path.name + ".unfinished")
    state_dict_saver.save({"model": model, "optimizer": optimizer, "progress": progress}, checkpoint_id=unfinished)
    if training.rank == 0:
        if path.exists():
            shutil.rmtree(path)
        os.replace(unfinished, path)


def _load_folder(training: ResumableTraining, path: str) -> dict[str, Any]:
    module, optimizer = training.arrangement.module, training.optimizer
    model_state, optimizer_state = get_state_dict(module, optimizer, options=FLAT)
    progress = {"epoch": 0, "steps_done": 0, "step": 0, "scaler": training.scaler.state_dict()}
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "progress": progress}
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=FLAT
    )
    loaded: dict[str, Any] = state["progress"]
    return loaded
