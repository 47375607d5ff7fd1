"""What a rank leaves behind when its training is over."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training


def write(training: Training, folder: str) -> None:
    """Write `result-<rank>.json`: losses as hexadecimal floats, so that equality means equality of all bits."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"result-{training.rank}.json"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result_of(training), indent=1), encoding="utf-8")
    os.replace(unfinished, path)


def result_of(training: Training) -> dict[str, object]:
    """What this rank has done, as plain values. A rank that had nothing to do has no losses and no digest."""
    trained = hasattr(training, "arrangement")
    return {
        "strategy": training.request.strategy,
        "rank": training.rank,
        "world_size": training.world_size,
        "device": str(training.device),
        "steps": training.step,
        "losses": [float(loss).hex() for loss in training.losses],
        "accuracies": training.accuracies,
        "parameters_sha256": parameters_sha256(training.arrangement.module) if trained else None,
        "parameters_whole": trained and not training.arrangement.sharded,
        "samples_per_second": training.samples_per_second,
        "training_seconds": training.training_seconds,
        "notes": training.notes,
    }


def parameters_sha256(module: nn.Module) -> str:
    """A digest of the bits of all parameters and buffers that this rank holds, with their names and shapes.

    Two ranks (or two runs) with the same digest hold the same model; of sharded parameters only this rank's shards count.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        digest.update(f"{name} {local.dtype} {tuple(local.shape)}\n".encode())
        digest.update(local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
