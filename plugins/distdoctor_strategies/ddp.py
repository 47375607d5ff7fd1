"""DistributedDataParallel: a replica on each rank, gradients averaged in buckets while backward is still computing."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from distdoctor.errors import WrongUse
from distdoctor.offers import Option, Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distdoctor.workloads.training import Training

DDP = Strategy(
    name="ddp",
    summary="DistributedDataParallel: a replica per rank, averaged gradients",
    train="distdoctor_strategies.ddp:train",
    options=(
        Option(
            "by-hand",
            "Average gradients by one all_reduce per parameter instead of DistributedDataParallel.",
            bool,
            False,
        ),
        Option("find-unused-parameters", "Let DDP look for parameters that a step does not use.", bool, False),
        Option(
            "gradient-as-bucket-view",
            "Let gradients live in DDP's buckets, without a second copy of them.",
            bool,
            True,
        ),
        Option(
            "lazy-bucket-allocation",
            "Make DDP's buckets in backward and give them back after it (torch >= 2.15).",
            bool,
            False,
        ),
        Option(
            "shard-optimizer",
            "ZeroRedundancyOptimizer: each rank keeps the optimizer's state of a share of the parameters.",
            bool,
            False,
        ),
        Option("sync-batch-norm", "Normalise by the whole batch (GPU only).", bool, False),
    ),
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, world_size)
    if request.options["shard_optimizer"] and request.save:
        raise WrongUse(
            "a checkpoint of an optimizer that is sharded over the ranks is not written",
            way_out="Leave out --save or --shard-optimizer, or take --strategy fsdp.",
        )
    if request.options["sync_batch_norm"] and request.backend == "gloo":
        raise no_synchronised_batch_norm()
    if request.options["lazy_bucket_allocation"] and not knows_lazy_buckets():
        raise no_lazy_buckets()


def knows_lazy_buckets() -> bool:
    """Whether the installed DistributedDataParallel takes `lazy_bucket_allocation` (torch >= 2.15)."""
    from torch.nn.parallel import DistributedDataParallel

    return "lazy_bucket_allocation" in inspect.signature(DistributedDataParallel).parameters


def no_lazy_buckets() -> WrongUse:
    return WrongUse(
        "this torch's DistributedDataParallel has no lazy_bucket_allocation",
        way_out="Install torch 2.15 or newer, or try --gradient-as-bucket-view.",
    )


def no_synchronised_batch_norm() -> WrongUse:
    return WrongUse(
        "SyncBatchNorm has no CPU implementation",
        way_out="Train on a GPU, or use a model that normalises by groups or layers, such as --model convnet.",
    )


def train(training: Training) -> None:
    """Train behind DistributedDataParallel, or with plain all_reduce calls in its place."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from distdoctor.workloads.arrangement import AveragedByHand, Replica

    module = training.make_model()
    if training.option("sync_batch_norm"):
        if training.device.type == "cpu":
            raise no_synchronised_batch_norm()
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if training.option("by_hand"):
        training.fit(
            AveragedByHand(module, precision=training.precision).reading_share(training.rank, training.world_size)
        )
        return
    # An older torch does not know the word: `validate` has refused it there.
    lazily: Any = {"lazy_bucket_allocation": True} if training.option("lazy_bucket_allocation") else {}
    model = DistributedDataParallel(
        module,
        device_ids=training.device_ids,
        find_unused_parameters=training.option("find_unused_parameters"),
        gradient_as_bucket_view=training.option("gradient_as_bucket_view"),
        **lazily,
    )
    if training.option("shard_optimizer"):
        training.replace("make_optimizer", lambda model: sharded_optimizer(training, model))
    training.fit(
        Replica(model, module=module, precision=training.precision).reading_share(training.rank, training.world_size)
    )


def sharded_optimizer(training: Training, model: nn.Module) -> torch.optim.Optimizer:
    """The training's optimizer, with the state of each parameter on one rank only."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    settings: dict[str, Any] = {"lr": training.request.lr}
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW
    if training.request.optimizer == "sgd":
        kind, settings = torch.optim.SGD, {**settings, "momentum": 0.9}
    sharded: torch.optim.Optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **settings)
    return sharded
