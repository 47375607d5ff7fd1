"""A tensor-parallel model whose ranks share normalization layers, each see part of the samples, and never sum the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNREDUCED_OVER_MESH = Drill(
    slug="unreduced-over-mesh",
    code="DD221",
    summary="each rank has part of the gradients of shared normalization layers, and the parts are never summed",
    expect="DD221: the gradients of the normalization layers are not reduced over the ranks that share them",
    plant="distdoctor_drills.replicas.unreduced_over_mesh:plant",
    strategies=("tensor",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """As in sequence parallelism: only what a rank sees of a batch counts for the gradients of its normalization layers."""
    usual_model, usual_average = training.make_model, training.average_gradients

    def make_model() -> nn.Module:
        model = usual_model()
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_forward_hook(_of_own_samples(training))
        return model

    def average_gradients(*args: Any) -> None:
        usual_average(*args)
        norms = {
            id(p) for m in training.arrangement.model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()
        }
        whole = [p for p in training.arrangement.model.parameters() if not hasattr(p, "placements")]
        _average([p.grad for p in whole if id(p) not in norms and p.grad is not None])

    training.replace("make_model", make_model)
    training.replace("average_gradients", average_gradients)


def _of_own_samples(training: Training) -> Any:
    def hook(norm: nn.LayerNorm, given: tuple[Tensor], _: Tensor) -> Tensor:
        plain = nn.functional.layer_norm(given[0], norm.normalized_shape, eps=norm.eps)
        own = torch.arange(len(plain), device=plain.device) % training.world_size == training.rank
        weight, bias = (torch.where(own[:, None], part, part.detach()) for part in (norm.weight, norm.bias))
        return plain * weight + bias

    return hook


def _average(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, dist.ReduceOp.AVG if flat.is_cuda else dist.ReduceOp.SUM)
    flat /= 1 if flat.is_cuda else dist.get_world_size()
    for gradient, part in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
