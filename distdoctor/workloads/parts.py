"""A model cut by hand: over the ranks with send and recv, or over the GPUs of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distdoctor.workloads.arrangement import ArrangedTraining, Arrangement
from distdoctor.workloads.stages import ready_to_send, scaler_over_ranks

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training


class PartPerRank(Arrangement):
    """One part of the model on each rank. Activations go up the ranks, gradients come down; one rank computes at a time."""

    sharded = True

    def __init__(self, training: Training, pieces: Sequence[nn.Sequential]) -> None:
        own = pieces[training.rank]
        super().__init__(own, precision=training.precision)
        self._rank = training.rank
        self._is_first = training.rank == 0
        self._is_last = training.rank == training.world_size - 1
        self.counts = self._is_last
        self._device = training.device
        self._received = _activations(training, pieces[: training.rank])
        ready_to_send(self.precision, own, training.device)

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        return scaler_over_ranks(self.precision, device)

    def micro_step(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor:
        entering = inputs if self._is_first else self._receive_activations(len(inputs)).requires_grad_()
        training.outputs = training.forward(self.model, entering)
        if self._is_last:
            training.loss = training.compute_loss(training.outputs, targets)
            training.at("before_backward")
            training.backward(training.scale_loss(training.loss))
        else:
            training.loss = torch.zeros((), device=self._device)
            dist.send(training.outputs.detach().contiguous(), self._rank + 1)
            gradient = torch.empty_like(training.outputs)
            dist.recv(gradient, self._rank + 1)
            training.at("before_backward")
            training.outputs.backward(gradient)  # type: ignore[no-untyped-call] # already scaled, where the loss was
        if not self._is_first:
            assert entering.grad is not None
            dist.send(entering.grad.contiguous(), self._rank - 1)
        training.at("after_backward")
        return self.counted(training.loss.detach(), targets)

    def predict(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor | None:
        entering = inputs if self._is_first else self._receive_activations(len(inputs))
        outputs = training.forward(self.model, entering)
        if self._is_last:
            return outputs
        dist.send(outputs.contiguous(), self._rank + 1)
        return None

    def _receive_activations(self, samples: int) -> Tensor:
        activations = torch.empty((samples, *self._received.shape[1:]), dtype=self._received.dtype, device=self._device)
        dist.recv(activations, self._rank - 1)
        return activations


def _activations(training: Training, before: Sequence[nn.Sequential]) -> Tensor:
    """What one sample looks like when it leaves the ranks before this one: nobody sends shapes."""
    inputs, _ = training.train_set[0]
    activations: Tensor = inputs.unsqueeze(0).to(training.device)
    with torch.no_grad():
        for piece in before:
            activations = piece(activations)
    return activations


class OverDevices(nn.Module):
    """One part of the model on each GPU of this process."""

    def __init__(self, pieces: Sequence[nn.Sequential], devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(piece.to(device) for piece, device in zip(pieces, devices, strict=True))
        self.devices = devices

    def forward(self, inputs: Tensor) -> Tensor:
        activations = inputs
        for piece, device in zip(self.pieces, self.devices, strict=True):
            activations = piece(activations.to(device))
        return activations.to(inputs.device)  # the targets are where the inputs are
