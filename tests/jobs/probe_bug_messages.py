"""Everything that ranks can send each other, as trainings of probe_bug_trainings.py."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from jobs.probe_bug_steps import digest, steps


def messages(rank: int, world_size: int, folder: str) -> str:
    """With and without handles, in groups of groups, and through a pipeline."""
    torch.manual_seed(0)
    one, other = torch.arange(4.0) + rank, torch.zeros(4)
    parts = [torch.zeros(4) for _ in range(world_size)]
    found = _between_two(rank, one, other)
    found += _collectives(rank, one, other, parts)
    found += _objects(rank, world_size)
    _handles(one, other)
    _groups(rank, world_size, one)
    _calls_that_do_not_last(one)
    found += [one, other, *parts, *_pipeline(rank, world_size)]
    return digest(*found)


def older_torch(rank: int, world_size: int, folder: str) -> str:
    """Collectives as torch before 2.14 tells of them: through the dispatcher."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    losses = steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, torch.randn(4, 16))
    return digest(*losses, *model.parameters(), messages(rank, world_size, folder))


def _between_two(rank: int, one: torch.Tensor, other: torch.Tensor) -> list[Any]:
    peer = 1 - rank
    if rank == 0:
        dist.send(one, 1, tag=3)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0, tag=3)
        dist.send(one, 0)
    received = other.clone()
    for handle in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, peer), dist.P2POp(dist.irecv, other, peer)]):
        handle.wait()
    sending, receiving = dist.isend(one, peer), dist.irecv(other)
    receiving.wait()  # type: ignore[union-attr]
    sending.wait()  # type: ignore[union-attr]
    return [received]


def _collectives(rank: int, one: torch.Tensor, other: torch.Tensor, parts: list[torch.Tensor]) -> list[Any]:
    dist.all_gather(parts, one)
    whole = torch.zeros(4 * len(parts))
    dist.all_gather_into_tensor(whole, one)
    dist.reduce_scatter_tensor(other, whole)
    dist.all_to_all_single(other, one)
    dist.broadcast(one, 0)
    dist.reduce(one, 1, op=dist.ReduceOp.MAX)
    dist.gather(other, parts if rank == 0 else None, dst=0)
    dist.scatter(other, parts if rank == 0 else None, src=0)
    return [part.clone() for part in (one, other, whole, *parts)]


def _objects(rank: int, world_size: int) -> list[Any]:
    things: list[Any] = [None] * world_size
    dist.all_gather_object(things, {"rank": rank})
    words = ["from 0"] if rank == 0 else [None]
    dist.broadcast_object_list(words, 0)
    return [things, words]


def _handles(one: torch.Tensor, other: torch.Tensor) -> None:
    for _ in range(3):
        handle = dist.all_reduce(one, async_op=True)
        handle.is_completed()  # type: ignore[union-attr]
        handle.wait()  # type: ignore[union-attr]
    kept = dist.all_reduce(other, async_op=True)
    kept.get_future().wait()  # type: ignore[union-attr]
    del kept
    dist.all_reduce(other, async_op=True)  # dropped
    dist.barrier()


def _groups(rank: int, world_size: int, one: torch.Tensor) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    group = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(one, group=group)
    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(one, group=mesh["dp"].get_group())
    dist.monitored_barrier()


def _calls_that_do_not_last(one: torch.Tensor) -> None:
    """From a function that is gone soon, and one that torch refuses."""
    for _ in range(2):
        scope: dict[str, Any] = {"dist": dist}
        exec("def made(one):\n    dist.all_reduce(one)\n", scope)
        scope.pop("made")(one)
    gc.collect()
    with contextlib.suppress(Exception):
        dist.all_gather_into_tensor(torch.zeros(3), one)


def _pipeline(rank: int, world_size: int) -> list[Any]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    found: list[Any] = []
    stage = PipelineStage(nn.Linear(4, 4), rank, world_size, torch.device("cpu"), input_args=(torch.zeros(2, 4),))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=torch.ones(4, 4), losses=losses)
            found += losses
    return found + [parameter.grad for parameter in stage.submod.parameters()]
