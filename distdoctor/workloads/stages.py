"""A model cut into stages, one or more per rank, through which each batch flows in micro-batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from distdoctor.workloads.arrangement import AUTOCAST, ArrangedTraining, Arrangement

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training


def joined(pieces: Sequence[nn.Sequential]) -> nn.Sequential:
    """The blocks of all pieces under their own names, for the optimizer and for checkpoints."""
    return nn.Sequential(OrderedDict(pair for piece in pieces for pair in piece.named_children()))


def ready_to_send(precision: str, piece: nn.Module, device: torch.device) -> None:
    """From now on the piece computes in this precision, and passes on what the next rank expects and gloo can send.

    That is fp32, as the stage's shapes were inferred on a device (meta) that no autocast reaches, and contiguous: torch
    2.15 does not see to that ("input tensor has to be contiguous", with a transformer's transposed outputs).
    """
    whole = precision == "fp32"
    compute = piece.forward if whole else torch.autocast(device.type, AUTOCAST[precision])(piece.forward)

    def forward(inputs: Tensor) -> Tensor:
        activations: Tensor = compute(inputs)
        return (activations if whole else activations.float()).contiguous()

    piece.forward = forward


def scaler_over_ranks(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """A GradScaler that skips a step on all ranks when the gradients of one have overflowed: each has but a part of them."""
    scaler = ShardedGradScaler(device.type, enabled=precision == "fp16")
    scaler.scale(
        torch.ones((), device=device)
    )  # it takes up its scale with the first loss, which only the last rank has
    return scaler


class Pipeline(Arrangement):
    """Some stages of the model on each rank, driven by one of torch's schedules."""

    sharded = True

    def __init__(
        self, training: Training, pieces: Sequence[nn.Sequential], *, schedule: str, micro_batches: int
    ) -> None:
        own = pieces[training.rank :: training.world_size]
        module = joined(own)
        super().__init__(module, precision=training.precision)
        self.counts = training.rank == training.world_size - 1
        self._training = training
        self._micro_batches = micro_batches
        self._is_first = training.rank == 0
        self._losses: list[Tensor] = []
        stages = [
            PipelineStage(piece, training.rank + turn * training.world_size, len(pieces), training.device)
            for turn, piece in enumerate(own)
        ]
        for piece in own:
            ready_to_send(self.precision, piece, training.device)
        # Gradients are divided in the loss instead: the schedule would divide those of earlier micro-steps again.
        if schedule == "interleaved":
            self._schedule: ScheduleInterleaved1F1B | ScheduleGPipe | Schedule1F1B = ScheduleInterleaved1F1B(
                list(stages), micro_batches, loss_fn=self._loss, scale_grads=False
            )
        else:
            kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
            self._schedule = kind(stages[0], micro_batches, loss_fn=self._loss, scale_grads=False)

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        return scaler_over_ranks(self.precision, device)

    def micro_step(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor:
        self._losses.clear()
        self._schedule.step(*self._inputs(inputs), target=self._targets(targets), losses=[], return_outputs=False)
        # The first step calls the loss once more beforehand, on uninitialised memory, to learn shapes (torch 2.15).
        of_this_batch = self._losses[-self._micro_batches :]
        loss = torch.stack(of_this_batch).mean() if self.counts else torch.zeros((), device=training.device)
        training.loss = loss
        training.at("after_backward")
        return self.counted(loss, targets)

    def predict(self, training: ArrangedTraining, inputs: Tensor, targets: Tensor) -> Tensor | None:
        # The stages have agreed on one shape: a smaller batch is filled up, and what that adds is cut off.
        missing = training.request.batch_size // training.request.accumulate - len(inputs)
        filled, expected = (torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in (inputs, targets))
        outputs = self._schedule.eval(*self._inputs(filled), target=self._targets(expected), losses=[])
        return outputs[: len(inputs)] if outputs is not None else None

    def _inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return (inputs,) if self._is_first else ()

    def _targets(self, targets: Tensor) -> Tensor | None:
        return targets if self.counts else None

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        training = self._training
        loss = training.compute_loss(outputs, targets)
        self._losses.append(loss.detach())
        scaled: Tensor = training.scaler.scale(training.scale_loss(loss / self._micro_batches))
        return scaled
