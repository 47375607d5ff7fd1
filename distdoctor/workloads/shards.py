"""A model whose parameters are sharded over ranks: fully (FSDP), within its layers (tensor parallel), or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from distdoctor.errors import WrongUse
from distdoctor.workloads.arrangement import AUTOCAST, Arrangement
from distdoctor.workloads.blocks import blocks_of

# Batch normalisation keeps its statistics in buffers, which FSDP2 does not cast, and torch refuses weights of 16 bits beside
# statistics of 32 (2.11-2.15; FSDP1 left these layers in fp32 by itself). Inputs of 16 bits beside weights of 32 are fine.
_FULL_PRECISION = MixedPrecisionPolicy(cast_forward_inputs=False)


class Sharded(Arrangement):
    """Shards of every parameter on each rank, gathered block by block when they are needed."""

    sharded = True

    def __init__(self, model: nn.Module, *, precision: str) -> None:
        super().__init__(model, precision="fp32")  # FSDP casts, not autocast
        self._scaled = precision == "fp16"

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(device.type, enabled=self._scaled)

    def gradients_stay_local(self) -> AbstractContextManager[object]:
        return without_reduction(cast("FSDPModule", self.model))


class SplitWithin(Arrangement):
    """Every rank reads the same samples and computes its slice of each layer."""

    sharded = True


@contextmanager
def without_reduction(model: FSDPModule) -> Iterator[None]:
    """FSDP's `no_sync`: gradients of this micro-step are kept unsharded and unreduced."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def shard_fully(
    model: nn.Module, mesh: DeviceMesh, *, precision: str, offload: bool, reshard_after_forward: bool
) -> None:
    """Shard each block, then the rest, over the mesh: one axis shards, of two axes the first replicates."""
    arguments: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": _mixed_precision(precision),
        "offload_policy": _offload(offload, mesh.device_type),
        "reshard_after_forward": reshard_after_forward,
    }
    try:
        blocks = [block for _, block in blocks_of(model, purpose="sharding block by block")]
    except WrongUse:
        blocks = []  # all at once then: correct, but the whole model is gathered for each forward
    for block in (*blocks, model):
        norms = batch_norms(block)
        if precision != "fp32" and norms:
            fully_shard(norms, **{**arguments, "mp_policy": _FULL_PRECISION})
        if block is model or (any(True for _ in block.parameters()) and not isinstance(block, FSDPModule)):
            fully_shard(block, **arguments)


def batch_norms(module: nn.Module) -> list[nn.Module]:
    """The batch normalisations in it that are not sharded yet."""
    kind = nn.modules.batchnorm._BatchNorm
    return [one for one in module.modules() if isinstance(one, kind) and not isinstance(one, FSDPModule)]


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the layers that the model's `tensor_plan()` names, in `colwise` and `rowwise` pairs, over the mesh."""
    plan = getattr(model, "tensor_plan", None)
    if plan is None:
        raise WrongUse(
            f"{type(model).__name__} does not say how its layers may be split",
            way_out="Use --model mlp or gpt, or give the model a method `tensor_plan()` that returns "
            "{layer name: 'colwise' or 'rowwise'}.",
        )
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    parallelize_module(model, mesh, {name: styles[style]() for name, style in plan().items()})


def _mixed_precision(precision: str) -> MixedPrecisionPolicy:
    if precision == "fp32":
        return MixedPrecisionPolicy()
    # Gradients are summed in fp32: a sum over many ranks in 16 bits loses what the small ones say.
    return MixedPrecisionPolicy(param_dtype=AUTOCAST[precision], reduce_dtype=torch.float32)


def _offload(offload: bool, device_type: str) -> OffloadPolicy:
    return CPUOffloadPolicy(pin_memory=device_type == "cuda") if offload else OffloadPolicy()
