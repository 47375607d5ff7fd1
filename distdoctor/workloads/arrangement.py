"""How one strategy holds the model: what this rank calls, which share of each batch it reads, what it counts and keeps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distdoctor.workloads.request import TrainingRequest

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class ArrangedTraining(Protocol):
    """What an arrangement asks of the training that it belongs to."""

    request: TrainingRequest
    world_size: int
    device: torch.device
    scaler: torch.amp.GradScaler
    outputs: Tensor
    loss: Tensor

    def at(self, moment: str) -> None: ...
    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor: ...
    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
    def scale_loss(self, loss: Tensor) -> Tensor: ...
    def backward(self, loss: Tensor) -> None: ...


class Arrangement:
    """A model in one piece on one rank: the arrangement of `single`, and the base of all others.

    A strategy builds one and hands it to `Training.fit`. What differs from it is overridden.
    """

    alone = False
    """No other rank takes part: nothing is reduced."""
    sharded = False
    """The ranks hold different parts of the model; checkpoints are folders that all ranks write."""
    counts = True
    """This rank's losses and hits go into the metrics; one rank of those that compute the same does it."""

    data_rank = 0
    """Which share of each batch this rank reads, out of `data_ranks`."""
    data_ranks = 1

    def __init__(self, model: nn.Module, *, module: nn.Module | None = None, precision: str = "fp32") -> None:
        self.model = model
        """What is called to train."""
        self.module = module if module is not None else model
        """The user's own module within, whose `state_dict` is saved."""
        self.precision = precision

    def reading_share(self, data_rank: int, data_ranks: int) -> Self:
        """The same arrangement, with this rank reading one of several shares of each batch."""
        self.data_rank, self.data_ranks = data_rank, data_ranks
        return self

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of forward and loss in the asked precision."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(device.type, AUTOCAST[self.precision])

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Keeps the small gradients of fp16 from vanishing; passes everything through otherwise (bf16 has fp32's range)."""
        return torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")

    def gradients_stay_local(self) -> AbstractContextManager[object]:
        """The context of a micro-step whose gradients are not averaged yet: `no_sync`."""
        return nullcontext()

    def average_gradients(self, training: ArrangedTraining) -> None:
        """Average the gradients before the optimizer's step, where no wrapper has done so."""

    def micro_step(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of one micro-batch; returns [sum of the targets' losses, number of targets] in float64."""
        with self.autocast(training.device):
            training.outputs = training.forward(self.model, inputs)
            training.loss = training.compute_loss(training.outputs, targets)
        training.at("before_backward")
        training.backward(training.scale_loss(training.loss))
        training.at("after_backward")
        return self.counted(training.loss.detach(), targets)

    def predict(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The scores for these inputs, or None where another rank has them."""
        with self.autocast(training.device):
            return training.forward(self.model, inputs)

    def counted(self, loss: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of these targets as what it adds to the job's metrics."""
        weight = targets.numel() if self.counts else 0
        return torch.stack([loss.double() * weight, loss.new_tensor(weight, dtype=torch.float64)])


class Alone(Arrangement):
    """The whole model in the only process that trains."""

    alone = True


class Replica(Arrangement):
    """The whole model and a share of the data on each rank, behind DistributedDataParallel."""

    def gradients_stay_local(self) -> AbstractContextManager[object]:
        no_sync = getattr(self.model, "no_sync", nullcontext)
        context: AbstractContextManager[object] = no_sync()
        return context


class AveragedByHand(Arrangement):
    """A replica of the model on each rank, whose gradients are averaged once backward is over, one parameter at a time."""

    def average_gradients(self, training: ArrangedTraining) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= training.world_size
