"""Trainings that together call nearly everything of the probe; each returns a digest of all that it computes.

Each takes a second or less. `TRAININGS` has them by name, with the number of their ranks.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import io
import math
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)


def alone(rank: int, world_size: int, folder: str) -> str:
    """A little of everything that the probe looks at. A digest of all that it computes."""
    torch.manual_seed(0)
    seen = hashlib.sha256()
    data = TensorDataset(torch.randn(48, 16), torch.randn(48, 4))
    sampler = DistributedSampler(data)  # type: ignore[var-annotated]
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    group = dist.new_group([0])
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            with torch.autocast("cpu", enabled=step % 4 == 0):
                loss = nn.functional.mse_loss(model(x).float(), y)
            if step % 3 == 2:
                with model.no_sync():
                    loss.backward()
                continue
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total, group=group)
            handle = dist.all_reduce(total, async_op=True)
            handle.wait()
            seen.update(str(total.item()).encode())
        schedule.step()
        model.eval()
        with torch.no_grad():
            seen.update(str(model(data.tensors[0]).sum().item()).encode())
        model.train()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/saved.pt")
        state = torch.load(f"{folder}/saved.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """A stream of samples, some of them nested, that each worker cuts for itself."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number in range(first, 24, step):
            yield {"x": torch.full((16,), number / 24), "names": [str(number)], "id": number}


class Held(Dataset):  # type: ignore[type-arg]
    """Samples in a list and in an array, as a program of its own holds them."""

    def __init__(self) -> None:
        self.rows = [{"number": number, "name": f"row {number}"} for number in range(40)]
        self.array = torch.arange(40 * 16.0).reshape(40, 16) / 640

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.array[number] + torch.rand(16), self.rows[number]["number"] % 4  # type: ignore[operator]


class Branched(nn.Module):
    """A part that is recomputed, one that takes part now and then, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.seldom, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, *, seldom: bool = False) -> torch.Tensor:
        x = torch.utils.checkpoint.checkpoint(
            lambda one: torch.relu(self.first(one)), self.norm(x), use_reentrant=False
        )
        return self.head(self.seldom(x) if seldom else x)  # type: ignore[no-any-return]


def together(rank: int, world_size: int, folder: str) -> str:
    """What only several ranks do, or few trainings: streams, workers, a scaler that skips, gathers, copies of the model."""
    torch.manual_seed(0)
    seen = hashlib.sha256()
    model = Branched()
    average = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    torch.manual_seed(rank)
    held = Held()
    batches = BatchSampler(DistributedSampler(held), 5, drop_last=False)
    for epoch, loader in enumerate(
        (
            DataLoader(held, batch_sampler=batches, num_workers=1),
            DataLoader(Numbers(), batch_size=4, num_workers=1),
            DataLoader(Numbers(), batch_size=4),
            DataLoader(held, batch_size=4, sampler=RandomSampler(held)),
        )
    ):
        for step, batch in enumerate(loader):
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            out = wrapped(x, seldom=step % 2 == 1)
            parts = [torch.zeros_like(out) for _ in range(world_size)]
            dist.all_gather(parts, out.detach())
            loss = (out - torch.stack(parts).mean(0)).square().mean() + out.square().mean()
            loss = loss * math.inf if (epoch, step) == (0, 3) else loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            wrapped.zero_grad()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            seen.update(str(loss.item()).encode())
        wrapped.eval()
        seen.update(str(wrapped(held.array).sum().item()).encode())  # an evaluation that forgot no_grad
        wrapped.train()
    x = held.array[:4].requires_grad_()
    (slope,) = torch.autograd.grad(model.double()(x.double()).sum(), x)
    seen.update(slope.numpy().tobytes())
    uneven = DistributedDataParallel(nn.Linear(16, 4))
    with Join([uneven]):
        for _ in range(2 + rank):
            uneven(held.array[:4].detach()).sum().backward()
    dist.monitored_barrier()
    again = pickle.loads(pickle.dumps(model))
    for parameter in (*again.parameters(), *average.parameters()):
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


def _digest(*parts: Any) -> str:
    """Of tensors (the local shard of a distributed one), numbers and words."""
    seen = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.to_local() if hasattr(part, "to_local") else part
            seen.update(part.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            seen.update(repr(part).encode())
    return seen.hexdigest()


def _steps(model: nn.Module, optimizer: Any, steps: int, x: torch.Tensor) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sharded(rank: int, world_size: int, folder: str) -> str:
    """FSDP of both kinds, ZeRO, and distributed checkpoints, asynchronous ones among them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    x = torch.randn(4, 16)
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[Any] = _steps(model, optimizer, 4, x)
    losses.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{os.path.dirname(folder)}/dcp")
    dcp.async_save(get_model_state_dict(model), checkpoint_id=f"{os.path.dirname(folder)}/dcp-async").result()
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=f"{os.path.dirname(folder)}/dcp")
    older = FullyShardedDataParallel(nn.Linear(16, 16), device_id=torch.device("cpu"), use_orig_params=True)
    losses += _steps(older, torch.optim.SGD(older.parameters(), lr=0.1), 3, x)
    zero_model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)))
    zero = ZeroRedundancyOptimizer(zero_model.parameters(), torch.optim.Adam, lr=0.01)
    losses += _steps(zero_model, zero, 3, x)
    zero.consolidate_state_dict(0)
    return _digest(*losses, *model.parameters(), *older.parameters(), *zero_model.parameters())


def messages(rank: int, world_size: int, folder: str) -> str:
    """Everything that ranks can send each other, with and without handles, groups of groups, and a pipeline."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    one, other = torch.arange(4.0) + rank, torch.zeros(4)
    parts = [torch.zeros(4) for _ in range(world_size)]
    found: list[Any] = []
    peer = 1 - rank
    if rank == 0:
        dist.send(one, 1, tag=3)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0, tag=3)
        dist.send(one, 0)
    found.append(other.clone())
    for handle in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, peer), dist.P2POp(dist.irecv, other, peer)]):
        handle.wait()
    sending, receiving = dist.isend(one, peer), dist.irecv(other)
    receiving.wait()  # type: ignore[union-attr]
    sending.wait()  # type: ignore[union-attr]
    dist.all_gather(parts, one)
    whole = torch.zeros(4 * world_size)
    dist.all_gather_into_tensor(whole, one)
    dist.reduce_scatter_tensor(other, whole)
    dist.all_to_all_single(other, one)
    dist.broadcast(one, 0)
    dist.reduce(one, 1, op=dist.ReduceOp.MAX)
    dist.gather(other, parts if rank == 0 else None, dst=0)
    dist.scatter(other, parts if rank == 0 else None, src=0)
    found += [one, other, whole, *parts]
    things: list[Any] = [None] * world_size
    dist.all_gather_object(things, {"rank": rank})
    words = ["from 0"] if rank == 0 else [None]
    dist.broadcast_object_list(words, 0)
    found += [things, words]
    for _ in range(3):
        handle = dist.all_reduce(one, async_op=True)
        handle.is_completed()  # type: ignore[union-attr]
        handle.wait()  # type: ignore[union-attr]
    kept = dist.all_reduce(other, async_op=True)
    kept.get_future().wait()  # type: ignore[union-attr]
    del kept
    dist.all_reduce(other, async_op=True)  # dropped
    dist.barrier()
    group = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(one, group=group)
    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(one, group=mesh["dp"].get_group())
    dist.monitored_barrier()
    for _ in range(2):
        scope: dict[str, Any] = {"dist": dist}
        exec("def made(one):\n    dist.all_reduce(one)\n", scope)
        scope.pop("made")(one)
    gc.collect()
    with contextlib.suppress(Exception):
        dist.all_gather_into_tensor(torch.zeros(3), one)
    stage = PipelineStage(nn.Linear(4, 4), rank, world_size, torch.device("cpu"), input_args=(torch.zeros(2, 4),))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=torch.ones(4, 4), losses=losses)
            found += losses
    found += [parameter.grad for parameter in stage.submod.parameters()]
    return _digest(*found)


def older_torch(rank: int, world_size: int, folder: str) -> str:
    """Collectives as torch before 2.14 tells of them: through the dispatcher."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    losses = _steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, torch.randn(4, 16))
    return _digest(*losses, *model.parameters(), messages(rank, world_size, folder))


def compiled(rank: int, world_size: int, folder: str) -> str:
    """torch.compile, closures, averaged models, communication hooks, and what torch will take away."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found: list[Any] = []
    layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    fast = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    averaged = torch.optim.swa_utils.AveragedModel(layers)
    for size in (4, 4, 6):
        found += _steps(fast, optimizer, 2, torch.randn(size, 16))
        averaged.update_parameters(layers)
    plain = DistributedDataParallel(nn.Linear(16, 4), static_graph=True, gradient_as_bucket_view=True)
    plain.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook)
    searching = torch.optim.LBFGS(plain.parameters(), lr=0.1, max_iter=3)
    x = torch.randn(8, 16)

    def closure() -> torch.Tensor:
        searching.zero_grad()
        loss = plain(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        found.append(searching.step(closure))  # type: ignore[arg-type]
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        found.append(plain(x).float())
    torch.cpu.amp.GradScaler(enabled=False)  # type: ignore[attr-defined]
    over = nn.DataParallel(nn.Linear(4, 4))
    found.append(over(torch.ones(2, 4)))
    norm = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    nn.utils.clip_grads_with_norm_(plain.parameters(), 1.0, norm)
    nn.utils.clip_grad_value_(plain.parameters(), 0.5)
    found += list(torch.autograd.grad(nn.Linear(16, 4)(x.requires_grad_()).sum(), x))
    by_hand = nn.Linear(16, 4)
    for parameter in by_hand.parameters():
        dist.broadcast(parameter.data, 0)
    own = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for step in range(4):
        own.zero_grad(set_to_none=bool(step % 2))
        features = by_hand(x.detach())
        gathered = [torch.zeros_like(features) for _ in range(world_size)]
        dist.all_gather(gathered, features)
        (torch.cat(gathered).square().mean() + features.mean()).backward()
        for parameter in by_hand.parameters():
            dist.all_reduce(parameter.grad)
        own.step()
    two = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    half = torch.optim.SGD(two[1].parameters(), lr=0.1)
    for _ in range(6):  # an optimizer that holds only a part of what is trained
        half.zero_grad()
        two[0](x.detach()).detach_()
        two(x.detach()).square().mean().backward()
        half.step()
    for _ in range(2):
        features = two[0](x.detach())
        gathered = [torch.zeros_like(features) for _ in range(world_size)]
        dist.all_gather(gathered, features.detach())
        two[1](torch.cat([*gathered, features])).square().mean().backward()
    inner = model.module
    found += _steps(inner, torch.optim.SGD(inner.parameters(), lr=0.1), 2, x.detach())  # past the wrapper
    bad = nn.Linear(16, 4)
    bad.weight.data[0, 0] = math.nan
    found += [str(one) for one in _steps(bad, torch.optim.SGD(bad.parameters(), lr=0.1), 2, x.detach())]
    return _digest(*found, *averaged.parameters(), *model.parameters(), *by_hand.parameters())


class Ordered(torch.utils.data.Sampler[int]):
    """A program's own sampler."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(self.length), key=lambda one: (one * 7 + self.epoch) % self.length))

    def __len__(self) -> int:
        return self.length


class Words(Dataset):  # type: ignore[type-arg]
    """Samples of every kind: paths, words, nested things, and nothing that tells its length quickly."""

    def __init__(self) -> None:
        self.files = [f"/data/{number}.txt" for number in range(30)]
        self.table = {
            number: (name, [number, {"deep": torch.ones(2) * number}]) for number, name in enumerate(self.files)
        }

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        return self.table[number]


class Rows(Dataset):  # type: ignore[type-arg]
    """Samples in arrays of NumPy, and in a list of words and numbers."""

    def __init__(self) -> None:
        self.array, self.bare = torch.arange(40.0).reshape(10, 4).numpy(), list(range(10))
        self.words = tuple(f"word {number}" for number in range(10))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        return self.array[number], self.bare[number], self.words[number]


def spawning(rank: int, world_size: int, folder: str) -> str:
    """A loader whose workers are new interpreters."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    return _digest(*(batch[0] for batch in loader))


def data(rank: int, world_size: int, folder: str) -> str:
    """Loaders over data of every kind: subsets, streams, nested samples, workers, batches that come as they are done."""
    import random

    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(rank)
    random.seed(rank)
    found: list[Any] = []
    words, held = Words(), Held()
    half = Subset(held, range(0, 40, 2))
    nested = Subset(Subset(words, list(range(20))), [3, 1, 4, 5, 9])
    both = torch.utils.data.ConcatDataset([held, half])
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = Ordered(30)
    shared = DistributedSampler(both, shuffle=True, drop_last=True)  # type: ignore[var-annotated]
    loaders: list[Any] = [
        DataLoader(words, batch_size=3, sampler=own, collate_fn=list),
        DataLoader(nested, batch_size=2, shuffle=True, collate_fn=list),
        DataLoader(both, batch_size=8, sampler=shared, num_workers=2, persistent_workers=True, in_order=False),
        DataLoader(held, batch_size=None, sampler=RandomSampler(held, replacement=True, num_samples=12)),
        DataLoader(Numbers(), batch_size=3, num_workers=2),
        DataLoader(list(range(64)), batch_size=4, shuffle=True),  # type: ignore[arg-type]
        DataLoader([(f"row {n}", [n, {"n": n}]) for n in range(9)], batch_size=3),  # type: ignore[arg-type]
        *(DataLoader(TensorDataset(torch.arange(50_000)), batch_size=25_000) for _ in range(20)),
        DataLoader(TensorDataset(torch.arange(60_000)), batch_size=6_000, shuffle=True),
        DataLoader({"a": 1.0, "b": 2.0, "c": 3.0}, batch_size=2, sampler=["b", "a", "c"]),  # type: ignore[arg-type]
        DataLoader(Rows(), batch_size=2, sampler=torch.tensor([3, 1, 2])),  # type: ignore[arg-type]
        StatefulDataLoader(held, batch_size=8, shuffle=True),
    ]
    for epoch in range(2):
        own.set_epoch(epoch)
        shared.set_epoch(epoch)
        for loader in loaders:
            batches = sorted(map(repr, loader)) if getattr(loader, "persistent_workers", False) else map(repr, loader)
            found += list(batches)
            found += _steps(model, optimizer, 1, torch.ones(2, 16))
    for batch in loaders[0]:
        found.append(repr(batch))
        break  # a pass that is left
    del batch, loader, loaders
    gc.collect()
    return _digest(*found)


def frameworks(rank: int, world_size: int, folder: str) -> str:
    """Data as Hugging Face's libraries hold and share it."""
    import accelerate
    import datasets

    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    rows = datasets.Dataset.from_dict({"x": [[float(n)] * 16 for n in range(24)], "y": list(range(24))})
    model, found = nn.Linear(16, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    map_style = DataLoader(rows.with_format("torch"), batch_size=3, shuffle=True)  # type: ignore[arg-type]
    stream = DataLoader(rows.to_iterable_dataset(2).shuffle(seed=1, buffer_size=4).with_format("torch"), batch_size=3)  # type: ignore[arg-type]
    model, optimizer, map_style = accelerator.prepare(model, optimizer, map_style)
    for epoch in range(2):
        for loader in (map_style, stream):
            loader.dataset.set_epoch(epoch) if hasattr(loader.dataset, "set_epoch") else None
            for batch in loader:
                loss = model(batch["x"]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
    accelerator.save_state(f"{folder}/accelerate-{rank}")
    return _digest(*found, *model.parameters())


def growing(rank: int, world_size: int, folder: str) -> str:
    """A training whose memory grows: losses and outputs that are kept, evaluations that record, modules within modules."""
    torch.manual_seed(0)
    model = Branched()
    history: dict[str, Any] = {"losses": [], "total": torch.zeros(())}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held = Held()
    cache = [torch.randn(64, 64)]
    total: Any = 0.0
    for step in range(26):
        out = model(held.array[:8])
        loss = out.square().mean()
        total = total + loss
        history["losses"].append(loss)
        cache.append(torch.randn(64, 64))
        optimizer.zero_grad()
        loss.backward(retain_graph=step % 5 == 0)
        optimizer.step()
        if step % 6 == 5:
            gc.collect()
            model.eval()
            kept = [model(held.array[8:16]) for _ in range(2)]
            history["seen"] = kept
            model.train()
        if step in (13, 19):
            model.eval()
            kept = [model(batch[0]) for batch in DataLoader(TensorDataset(held.array), batch_size=4)]
            history["batches"] = kept
            model.train()
    slope = torch.autograd.grad(model(held.array[:2].requires_grad_()).sum(), model.head.weight)
    return _digest(total, *history["losses"], *slope, *model.parameters())


def checkpoints(rank: int, world_size: int, folder: str) -> str:
    """Everything that is saved and loaded: buffers, renamed files, pointers, safetensors, in a thread, and what fails."""
    import threading

    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    found: list[Any] = []
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(8, 16)
    for step in range(3):
        found += _steps(model, optimizer, 2, x)
        schedule.step()
        torch.save({name: one.clone() for name, one in model.state_dict().items()}, f"{folder}/copies.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                 "schedule": schedule.state_dict(), "scaler": scaler.state_dict()}  # fmt: skip
        torch.save(state, f"{folder}/draft.pt")
        os.replace(f"{folder}/draft.pt", f"{folder}/step-{step}.pt")
        with open(f"{folder}/latest", "w") as file:
            file.write(f"step-{step}.pt")
        saving = threading.Thread(target=torch.save, args=(state, f"{folder}/thread-{step}.pt"))
        saving.start()
        saving.join()
        save_file(model.state_dict(), f"{folder}/step-{step}.safetensors")
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        found.append(len(buffer.getvalue()))
    with contextlib.suppress(Exception):
        torch.save(lambda: None, f"{folder}/never.pt")
    with contextlib.suppress(Exception):
        torch.load(f"{folder}/never.pt")
    state = torch.load(f"{folder}/step-1.pt", map_location="cpu")
    found.append(str(model.load_state_dict(state["model"])))
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    scaler.load_state_dict(state["scaler"])
    with contextlib.suppress(RuntimeError):
        model.load_state_dict({"module.0.weight": torch.zeros(16, 16)})
    found.append(str(model.load_state_dict({"0.weight": torch.ones(16, 16)}, strict=False)))
    model.load_state_dict(load_file(f"{folder}/step-2.safetensors"))
    found += _steps(model, optimizer, 2, x)
    return _digest(*found, *model.parameters())


def watched(rank: int, world_size: int, folder: str) -> str:
    """Replicas that nobody wraps, which the program names itself, and looks at phases of its own."""
    import distdoctor

    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    watch = distdoctor.watch(model) if "distdoctor.probe.seam" in sys.modules else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(5):
        loss = model(torch.ones(4, 16)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    start = sys.modules.get("distdoctor.probe.start")
    if start is not None:
        begins, ends = start.phase_marks()
        begins("evaluation")
        ends("evaluation")
        start.recorded_in()
        start.destination()
    del watch
    return _digest(*found, *model.parameters())


def signalled(rank: int, world_size: int, folder: str) -> str:
    """A handler that issues collectives of its own, threads, and an exit by SystemExit out of a handler."""
    torch.manual_seed(0)
    found: list[Any] = []

    def asks(*_: Any) -> None:
        word = torch.ones(1)
        dist.all_reduce(word)
        found.append(word)

    signal.signal(signal.SIGUSR1, asks)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        found += _steps(model, optimizer, 1, torch.ones(4, 16))
        if step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        child = os.fork()  # a helper of the program's own
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    return _digest(*found, *model.parameters())


def failing(rank: int, world_size: int, folder: str) -> str:
    """A training that will end with an exception: see `ENDS`."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    losses = _steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, torch.ones(4, 16))
    return _digest(*losses, *model.parameters())


def _out_of_memory() -> None:
    torch.empty(1 << 52)


def _terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


Training = Callable[[int, int, str], str]
TRAININGS: dict[str, tuple[Training, int]] = {
    "alone": (alone, 1),
    "together": (together, 2),
    "messages": (messages, 2),
    "compiled": (compiled, 2),
    "sharded": (sharded, 2),
    "data": (data, 2),
    "growing": (growing, 1),
    "checkpoints": (checkpoints, 1),
    "watched": (watched, 2),
    "signalled": (signalled, 2),
    "failing": (failing, 2),
    "older_torch": (older_torch, 2),
    "second": (failing, 1),
    "no_room": (failing, 1),
    "spawning": (spawning, 1),
    "frameworks": (frameworks, 1),
}
NUMBERED = frozenset(TRAININGS) - {"alone", "second", "watched"}  # whose start the launcher has numbered
# How some of them end, after all that they compute is known.
ENDS: dict[str, Callable[[], None]] = {"failing": _out_of_memory, "signalled": _terminated}
VARIABLES = {"older_torch": {"DISTDOCTOR_COLLECTIVES": "dispatcher"}}
DEEP = frozenset({"together", "growing", "compiled"})  # those that are looked at in every step
