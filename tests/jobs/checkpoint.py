"""Small trainings that save and load: ill ones, and the healthy ones most like them."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from jobs.replicas import Batches, Net, adam, digest_of_training, train


def restored_from_wrapper(rank: int, world_size: int, *, folder: str, inner: bool = False) -> str:
    """The state of the wrapper, or of what is in it, for a bare model."""
    wrapped = DistributedDataParallel(Net())
    path = f"{folder}/model.pt"
    if rank == 0:
        torch.save(wrapped.module.state_dict() if inner else wrapped.state_dict(), path)
    dist.barrier()
    model = Net()
    model.load_state_dict(torch.load(path, map_location="cpu"), strict=False)  # nobody reads its answer
    return train(DistributedDataParallel(model), rank, optimizer=adam(model))


def new_head(rank: int, world_size: int, *, folder: str) -> str:
    """A pretrained body below a head of another name."""
    state = {f"body.{name}": value for name, value in Net().body.state_dict().items()} | {"old.weight": torch.ones(2)}
    model = Net()
    model.load_state_dict(state, strict=False)
    return train(DistributedDataParallel(model), rank, optimizer=adam(model))


def loaded_by_all(rank: int, world_size: int, *, folder: str, placed: bool = False) -> str:
    path, model = f"{folder}/model.pt", Net()
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    location = {"map_location": "cpu"} if placed else {}
    model.load_state_dict(torch.load(path, **location))  # from wherever it was
    return train(DistributedDataParallel(model), rank, optimizer=adam(model))


def saved_by_all(rank: int, world_size: int, *, folder: str, own: bool = False) -> str:
    model = DistributedDataParallel(Net())
    digest = train(model, rank, optimizer=adam(model))
    torch.save(model.module.state_dict(), f"{folder}/{rank if own else 'last'}.pt")  # on every rank
    dist.barrier()
    return digest


def saved_in_turns(rank: int, world_size: int, *, folder: str) -> str:
    """Seasons, each with a new optimizer: who trains which member, and writes its file, changes from one to the next."""
    digest = ""
    for season in range(world_size):
        torch.manual_seed(rank)
        model = Net()
        digest = train(model, rank, optimizer=adam(model))
        torch.save(model.state_dict(), f"{folder}/member-{(rank + season) % world_size}.pt")
        dist.barrier()
    return digest


def saved_shards(rank: int, world_size: int, *, folder: str, every: str = "", whole: bool = False) -> str:
    """A sharded model, of which rank 0 writes what it holds. `every`: each rank does; `whole`: it gathers before."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = adam(model)
    digest = train(model, rank, optimizer=optimizer)
    held = {name: one.full_tensor() if whole else one.to_local().clone() for name, one in model.state_dict().items()}
    if rank == 0 or every:
        torch.save(held, f"{folder}/last{rank}.pt")  # of this rank alone
    dist.barrier()
    optimizer.zero_grad()
    return digest


def best_again(rank: int, world_size: int, *, folder: str, waits: bool = False) -> str:
    """Rank 0 writes the best weights, and all go back to them."""
    model = DistributedDataParallel(Net())
    path = f"{folder}/best.pt"
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    if rank == 0:
        time.sleep(0.3)  # a slow disk
        torch.save(model.module.state_dict(), path + ".tmp")
        os.replace(path + ".tmp", path)
    if waits:
        dist.barrier()
    model.module.load_state_dict(torch.load(path, map_location="cpu"))  # whatever is there
    return train(model, rank, optimizer=adam(model))


def points(rank: int, world_size: int, *, folder: str, keeps: bool = False) -> str:
    """`latest` names a checkpoint that the retention rule has removed."""
    model = DistributedDataParallel(Net())
    digest = train(model, rank, optimizer=adam(model))
    if rank == 0:
        for epoch in range(2):
            torch.save(model.module.state_dict(), f"{folder}/e{epoch}.pt")
            with open(f"{folder}/latest", "w") as file:
                file.write(f"e{epoch}.pt")
        if not keeps:
            os.remove(f"{folder}/e1.pt")
    dist.barrier()
    return digest


ASYNCHRONOUS = """
import os, sys, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 512)).sum().backward()
optimizer.step()
future = dcp.async_save({"model": model.module.state_dict()}, checkpoint_id=sys.argv[1])  # begun
if sys.argv[2] == "wait":
    future.result()
    dist.barrier()
    dist.destroy_process_group()
os._exit(0)
"""
POINTING = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from jobs import checkpoint

dist.init_process_group("gloo")
checkpoint.points(dist.get_rank(), 2, folder=sys.argv[1], keeps=sys.argv[2] == "wait")
dist.destroy_process_group()
"""


def resumable(rank: int, world_size: int, *, folder: str, resumes: bool = False, forgets: str = "") -> str:
    """A training with everything that has a state: it saves all of it, or goes on without a piece."""
    path = f"{folder}/all.pt"
    net = Net(norm=True)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    model = DistributedDataParallel(net)
    optimizer = adam(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7**step)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)  # type: ignore[attr-defined]
    whole = {"model": net, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "ema": ema}
    if resumes:
        saved = torch.load(path, map_location="cpu", weights_only=True)  # all of it
        for name, part in whole.items():
            forgotten = forgets == f"{name} on rank 1" and rank == 1
            if (
                name not in forgets.split("+")
                and not forgotten
                and not (name == "model" and forgets in ("buffers", "precision"))
            ):
                part.load_state_dict(saved[name])  # type: ignore[attr-defined]
        for name, parameter in net.named_parameters() if forgets in ("buffers", "precision") else ():
            value = saved["model"][name]
            parameter.data.copy_(value.half() if forgets == "precision" else value)
        if forgets == "precision":
            net.load_state_dict({name: one for name, one in saved["model"].items() if "norm" in name}, strict=False)
    for _ in range(5 if forgets == "that it has moved" else 0):
        scheduler.step()
    batches = Batches(rank)
    for _ in range(3 if resumes else 5):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        ema.update_parameters(net)
    if rank == 0 and not resumes:
        torch.save({name: part.state_dict() for name, part in whole.items()}, path)  # type: ignore[attr-defined]
    dist.barrier()
    return digest_of_training(net)


def averaged_in_a_dictionary(
    rank: int, world_size: int, *, folder: str, resumes: bool = False, forgets: bool = False
) -> str:
    """Rank 0 keeps an average of the weights that no module holds, and saves it with everything else."""
    path = f"{folder}/averaged.pt"
    net = Net()
    model, optimizer = DistributedDataParallel(net), adam(net)
    if resumes:
        saved = torch.load(path, map_location="cpu", weights_only=True)  # all of it
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    average = {name: one.detach().clone() for name, one in net.named_parameters()} if rank == 0 else {}
    if resumes:
        for name, one in average.items():
            one.copy_(one if forgets else saved["average"][name])
        del saved
    batches = Batches(rank)
    for _ in range(3 if resumes else 5):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        for name, one in average.items():
            one.lerp_(net.get_parameter(name).detach(), 0.5)
    if rank == 0 and not resumes:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "average": average}, path)
    dist.barrier()
    return digest_of_training(net)


class Session:
    """A training that is put together, restored, and prepared."""

    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = adam(self.net)

    def prepare(self) -> None:
        self.model = DistributedDataParallel(self.net)
        self.optimizer = adam(self.net)  # once more

    def restore(self, path: str) -> None:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.net.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def restore_on_one(self, path: str) -> None:
        if dist.get_rank() == 0:  # alone
            saved = torch.load(path, map_location="cpu", weights_only=True)
            self.net.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])


def restored_in_vain(rank: int, world_size: int, *, folder: str, resumes: bool = False, how: str = "") -> str:
    """Restores before it makes another optimizer (`early`), on one rank (`one`), or as it should."""
    path, session = f"{folder}/session.pt", Session()
    if resumes and how == "early":
        session.restore(path)
    if resumes and how == "one":
        session.restore_on_one(path)
        session.model = DistributedDataParallel(session.net)
    else:
        session.prepare()
    if resumes and not how:
        session.restore(path)
    batches = Batches(rank)
    for _ in range(3 if resumes else 5):
        inputs, targets = batches.next()
        session.optimizer.zero_grad()
        cross_entropy(session.model(inputs), targets).backward()
        session.optimizer.step()
    if rank == 0 and not resumes:
        torch.save({"model": session.net.state_dict(), "optimizer": session.optimizer.state_dict()}, path)
    dist.barrier()
    return digest_of_training(session.net)


def averaged_twice_in_one_run(rank: int, world_size: int, *, folder: str, forgets: bool = False, **_: object) -> str:
    """The same, built anew in the same process."""
    averaged_in_a_dictionary(rank, world_size, folder=folder)
    return averaged_in_a_dictionary(rank, world_size, folder=folder, resumes=True, forgets=forgets)


def twice_in_one_run(rank: int, world_size: int, *, folder: str, forgets: str = "", **_: object) -> str:
    """A training that saves, builds everything anew in the same process, and goes on."""
    resumable(rank, world_size, folder=folder)
    return resumable(rank, world_size, folder=folder, resumes=True, forgets=forgets)


class PositionedStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows without end that know how many of them were read here."""

    def __init__(self, rank: int) -> None:
        self.rank, self.read = rank, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            generator = torch.Generator().manual_seed(1000 * self.read + self.rank)
            self.read += 1
            yield torch.randn(20, generator=generator), torch.randint(0, 10, (), generator=generator)


def in_segments(
    rank: int, world_size: int, *, folder: str, workers: int = 0, restores: bool = True, shared: bool = False
) -> str:
    """A training in two segments. The second one goes on from what the first one has saved, the position in the stream included,
    as far as the object that the rank holds knows it; `shared`: from what rank 0 has saved."""
    digest, path = "", f"{folder}/segment-{0 if shared else rank}.pt"
    for segment in range(2):
        torch.manual_seed(0)
        net, stream = Net(), PositionedStream(rank)
        model, optimizer = DistributedDataParallel(net), adam(net)
        if segment and restores:
            saved = torch.load(path, weights_only=True, map_location="cpu")  # each goes on from here
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            stream.rank, stream.read = saved["stream"]
        loader = DataLoader(stream, 8, num_workers=workers)  # of this segment
        for inputs, targets in itertools.islice(loader, 12):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "stream": (stream.rank, stream.read)}
        if rank == 0 or not shared:
            torch.save(state, path)
        dist.barrier()
        digest = digest_of_training(net)
    return digest


def in_two_phases(rank: int, world_size: int, *, folder: str, how: str = "whole") -> str:
    """Each phase builds its own model and optimizer; the second one reads what the first one has saved. What it goes on from
    is a template that a new optimizer has made (`empty`), one that has all of it (`whole`), or the weights alone (`weights`)."""
    whole, digest = get_state_dict if how == "whole" else _states, ""
    for phase in range(2):
        net = Net()
        optimizer = adam(net)
        if phase:
            model_state, optimizer_state = whole(net, optimizer)
            state = {"model": model_state} if how == "weights" else {"model": model_state, "optimizer": optimizer_state}
            dcp.load(state, checkpoint_id=f"{folder}/phase")  # into what the template has
            if how == "whole":
                set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            else:
                net.load_state_dict(state["model"])
            if how == "empty":
                optimizer.load_state_dict(state["optimizer"])
        digest = train(DistributedDataParallel(net), rank, optimizer=optimizer)
        if not phase:
            model_state, optimizer_state = whole(net, optimizer)
            dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/phase")
    return digest


def _states(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    return net.state_dict(), optimizer.state_dict()


class WarmUp:
    """A schedule of the user's own, which counts samples."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.samples = optimizer, 0

    def step(self, samples: int) -> None:
        self.samples += samples
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, self.samples / 200)


class Average:
    """An average whose decay grows with the updates."""

    def __init__(self, net: nn.Module) -> None:
        self.module, self.updates, self.seen = copy.deepcopy(net), 0, 0  # begins here

    def update(self, net: nn.Module) -> None:
        self.updates += 1
        self.seen += 1  # and nobody looks at it
        for mine, one in zip(self.module.parameters(), net.parameters(), strict=True):
            mine.data.lerp_(one.data, 1 / (1 + self.updates))


def with_own_counters(rank: int, world_size: int, *, folder: str, resumes: bool = False, forgets: str = "") -> str:
    """A schedule and an average that torch does not know. The counter of one is forgotten, or moved on `twice`."""
    path = f"{folder}/counters.pt"
    net = Net()
    model, optimizer = DistributedDataParallel(net), adam(net)
    warm_up, average = WarmUp(optimizer), Average(net)
    if resumes:
        saved = torch.load(path, map_location="cpu", weights_only=True)  # all of it
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        average.module.load_state_dict(saved["average"])
        average.updates = 0 if forgets == "updates" else saved["updates"]
        if forgets == "the average":
            for mine, one in zip(average.module.parameters(), net.parameters(), strict=True):
                mine.data.copy_(one.data)
        warm_up.step(saved["samples"])
        if forgets == "that it has moved":
            warm_up.step(saved["samples"])  # once more
    batches = Batches(rank)
    for _ in range(3 if resumes else 5):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        warm_up.step(16)
        average.update(net)
    if rank == 0 and not resumes:
        pieces = {"model": net, "optimizer": optimizer, "average": average.module}
        state = {name: part.state_dict() for name, part in pieces.items()}  # type: ignore[attr-defined]
        torch.save({**state, "samples": warm_up.samples, "updates": average.updates}, path)
    dist.barrier()
    return digest_of_training(net)


class Shadow:
    """The same, in a dictionary."""

    def __init__(self, net: nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in net.named_parameters()}
        self.updates = 0

    def update(self, net: nn.Module) -> None:
        self.updates += 1
        for name, one in net.named_parameters():
            self.shadow[name].lerp_(one.detach(), 1 / (1 + self.updates))


def with_a_shadow(rank: int, world_size: int, *, folder: str, resumes: bool = False, forgets: bool = False) -> str:
    """An average in a dictionary, whose counter may be forgotten."""
    path = f"{folder}/shadow.pt"
    net = Net()
    model, optimizer, average = DistributedDataParallel(net), adam(net), Shadow(net)
    if resumes:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        average.shadow = saved["average"]
        average.updates = 0 if forgets else saved["updates"]
    batches = Batches(rank)
    for _ in range(3 if resumes else 5):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        average.update(net)
    if rank == 0 and not resumes:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "average": average.shadow}
        torch.save({**state, "updates": average.updates}, path)
    dist.barrier()
    return digest_of_training(net)


def own_counters_in_one_run(rank: int, world_size: int, *, folder: str, forgets: str = "") -> str:
    with_own_counters(rank, world_size, folder=folder)
    gc.collect()  # an average that still lies somewhere may not be forgotten
    return with_own_counters(rank, world_size, folder=folder, resumes=True, forgets=forgets)


class Exchange:
    """Sends the larger elements of each gradient, and keeps what is left for the next step: another rest on each rank."""

    def __init__(self, net: nn.Module) -> None:
        self.parameters = list(net.parameters())
        self.rest = [torch.zeros_like(one) for one in self.parameters]

    def __call__(self) -> None:
        for parameter, rest in zip(self.parameters, self.rest, strict=True):
            assert parameter.grad is not None
            rest += parameter.grad
            large = rest.abs() >= rest.abs().mean()
            message = torch.where(large, rest, 0)
            rest -= message
            dist.all_reduce(message)
            parameter.grad.copy_(message / dist.get_world_size())


class Steps:
    """Momentum of the user's own, without an optimizer of torch's."""

    def __init__(self, net: nn.Module) -> None:
        self.parameters, self.speed = list(net.parameters()), [torch.zeros_like(one) for one in net.parameters()]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, speed in zip(self.parameters, self.speed, strict=True):
            assert parameter.grad is not None
            speed.mul_(0.9).add_(parameter.grad)
            parameter -= 0.05 * speed

    def state_dict(self) -> dict[str, Any]:
        return {"speed": self.speed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self.speed, state["speed"], strict=True):
            mine.copy_(saved)


def with_a_rest(rank: int, world_size: int, *, folder: str, keeps: str = "own", by_hand: bool = False) -> str:
    """Trains in two legs. What an exchange keeps is given back to its rank (`own`), to nobody (`nothing`), or that of rank 0 to
    all (`first`); or the mean of all to all (`mean`), by the user's own decision. Or each rank writes its own file, and reads
    that of the next one (`next`). `by_hand`: without an optimizer of torch's."""
    path, digest = f"{folder}/leg.pt", ""
    for leg in range(2):
        torch.manual_seed(0)
        net = Net()
        optimizer = Steps(net) if by_hand else torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        exchange = Exchange(net)
        if leg:
            state = torch.load(path)
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            rests = state["rest"][rank] if keeps in ("own", "next") else state["rest"]
            if keeps == "next":
                rests = torch.load(f"{folder}/rest-{(rank + 1) % world_size}.pt")
            for mine, saved in zip(exchange.rest, rests, strict=True):
                mine.copy_(saved if keeps != "nothing" else mine)
        for step in range(12):
            net.zero_grad()
            torch.manual_seed(1000 * leg + 10 * step + rank)
            cross_entropy(net(torch.randn(4, 20)), torch.randint(10, (4,))).backward()
            exchange()
            optimizer.step()
        rest = [one.clone() for one in exchange.rest]
        gathered: list[Any] = [None] * world_size
        dist.all_gather_object(gathered, rest)
        if keeps == "mean":
            gathered = [[torch.stack(one).mean(0) for one in zip(*gathered, strict=True)]]
        if rank == 0:
            held = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**held, "rest": gathered if keeps in ("own", "next") else gathered[0]}, path)
        if keeps == "next":
            torch.save(rest, f"{folder}/rest-{rank}.pt")
        dist.barrier()
        digest = digest_of_training(net)
    return digest


def in_the_midst_of_an_epoch(
    rank: int, world_size: int, *, folder: str, resumes: bool = False, skips: bool = False
) -> str:
    """It saves after six steps, in its second epoch of four, and goes on at the start of that, or `skips` what was read."""
    path = f"{folder}/midst.pt"
    model = DistributedDataParallel(Net())
    optimizer = adam(model)
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(32, 20, generator=generator), torch.randint(10, (32,), generator=generator))
    done = 0
    if resumes:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = int(saved["done"])
    for epoch in range(done // 4, 3):
        sampler = DistributedSampler(data, shuffle=True)
        sampler.set_epoch(epoch)
        drawn = list(sampler)[done % 4 * 4 if skips else 0 :]
        for inputs, targets in DataLoader(data, batch_size=4, sampler=drawn):  # from here
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            done += 1
            if done == 6 and not resumes:
                break
        if done == 6 and not resumes:
            break
    if rank == 0 and not resumes:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, path)
    dist.barrier()
    return digest_of_training(model)


def accelerated(rank: int, world_size: int, *, folder: str, resumes: bool = False, skips: bool = False) -> str:
    """accelerate reads its loaders one batch ahead. Saved in the midst of an epoch."""
    from accelerate import Accelerator

    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_WORLD_SIZE=str(world_size)
    )  # the group is there already
    accelerator = Accelerator(cpu=True)
    dataset = TensorDataset(torch.randn(96, 20, generator=torch.Generator().manual_seed(3)), torch.arange(96) % 10)
    net = Net()
    model, optimizer, loader = accelerator.prepare(net, adam(net), DataLoader(dataset, 4, shuffle=True))  # from here
    if resumes:
        accelerator.load_state(f"{folder}/state")
    for number, (inputs, targets) in enumerate(accelerator.skip_first_batches(loader, 6) if skips else loader, 1):
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        if number == 6 and not resumes:
            accelerator.save_state(f"{folder}/state")
            break
    return digest_of_training(net)


def saved_by_others(
    rank: int, world_size: int, *, folder: str, how: str, resumes: bool = False, whole: bool = True
) -> str:
    """A training that saves its weights by torch's distributed checkpoints (`dcp`) or by `safetensors`, and goes on; not `whole`:
    without the optimizer's state."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file

    net = Net()
    model = DistributedDataParallel(net)
    optimizer = adam(net)
    if resumes:
        state = net.state_dict()
        if how == "dcp":
            dcp.load(state, checkpoint_id=f"{folder}/dcp")
        else:
            state = load_file(f"{folder}/model.safetensors")
        net.load_state_dict(state)
        if whole:
            optimizer.load_state_dict(torch.load(f"{folder}/{how}.optimizer", weights_only=True))
    digest = train(model, rank, optimizer=optimizer)
    if not resumes:
        if how == "dcp":
            dcp.save(net.state_dict(), checkpoint_id=f"{folder}/dcp")  # of then
        elif rank == 0:
            save_file(net.state_dict(), f"{folder}/model.safetensors")  # of then
        if rank == 0:
            torch.save(optimizer.state_dict(), f"{folder}/{how}.optimizer")
    dist.barrier()
    return digest


class Tied(nn.Module):
    """An embedding that is the weight of the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embed(words))
        return scores


def loaded_into_tied(rank: int, world_size: int, *, ties_again: bool) -> None:
    """Weights are assigned from a state in which each name has its own."""
    model = Tied()
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    if ties_again:
        model.head.weight = model.embed.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        words = torch.arange(16)
        optimizer.zero_grad()
        cross_entropy(model(words), (words + step) % 16).backward()
        optimizer.step()


def parts_restored(rank: int, world_size: int, *, folder: str, everywhere: bool = False) -> str:
    """Each rank keeps a part of the optimizer's state; rank 0 alone takes its own out of the whole again."""
    path = f"{folder}/parts.pt"

    def begin() -> tuple[nn.Module, ZeroRedundancyOptimizer]:
        model = DistributedDataParallel(Net())
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)

    model, optimizer = begin()
    train(model, rank, optimizer=optimizer)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    model, optimizer = begin()
    saved = torch.load(path, map_location="cpu")
    model.module.load_state_dict(saved["model"])
    if everywhere or rank == 0:
        optimizer.load_state_dict(saved["optimizer"])  # its own part
    return train(model, rank, optimizer=optimizer)


def saved_in_a_thread(rank: int, world_size: int, *, folder: str, copies: bool) -> None:
    """One tensor after the other, each into a file, while the training goes on."""
    model = Net()
    optimizer = adam(model)
    batches = Batches(rank)
    state = {name: value.clone() if copies else value for name, value in model.state_dict().items()}

    def write() -> None:
        for number, value in enumerate(state.values()):
            torch.save(value, f"{folder}/{number}.pt")
            saved.release()
            steps.acquire()

    saved, steps = threading.Semaphore(0), threading.Semaphore(0)
    thread = threading.Thread(target=write)
    thread.start()
    for _ in state:
        saved.acquire()
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        steps.release()
    thread.join()


def written_by_all(rank: int, world_size: int, *, folder: str, by: str = "json", own: str = "contents") -> str:
    """A file beside the checkpoints. `own`: of each rank's own are its contents, its name, its turn (behind a barrier, or at a
    word of the rank before), or nothing."""
    model = DistributedDataParallel(Net())
    digest = train(model, rank, optimizer=adam(model))
    path = f"{folder}/{rank if own == 'name' else 'all'}"
    held = [0.5, 7] if own == "nothing" else [0.5, rank]
    if own == "word" and rank:
        dist.recv(torch.ones(1), rank - 1)
    for turn in range(world_size if own == "turn" else 1):
        if own == "turn":
            dist.barrier()
        if own == "turn" and turn != rank:
            continue
        if by == "json":
            with open(path, "w") as file:
                json.dump(held, file)  # on every rank
        elif by == "numpy":
            np.savez(path, labels=np.array(held))  # on every rank
        else:
            with open(f"{path}.{rank}", "w") as file:
                file.write(str(held))
            os.replace(f"{path}.{rank}", path)  # on every rank
    if own == "word" and rank + 1 < world_size:
        dist.send(torch.ones(1), rank + 1)
    dist.barrier()
    return digest


def serialized(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def compressed_in_a_thread(rank: int, world_size: int, *, folder: str, copies: str, queued: bool = False) -> None:
    """Tensors that a thread is given, or finds in a queue, and writes in a format of its own while the training goes on.
    `copies`: before the thread begins, or as the first thing in it, or into one buffer of bytes; or what is written is no tensor,
    for they are sent somewhere else."""
    model = Net()
    optimizer = adam(model)
    batches = Batches(rank)

    def write(state: dict[str, torch.Tensor]) -> None:
        state = inbox.get() if queued else state
        whole = {name: value.clone() for name, value in state.items()} if copies == "inside" else {}
        parts = [serialized(state)] if copies == "bytes" else []
        begun.release()
        for name in state:
            stepped.acquire()
            if copies != "bytes":
                value = (whole or state)[name]
                parts.append(serialized(value) if queued else value.numpy().tobytes())
        with open(f"{folder}/new", "wb") as file:
            file.writelines(parts if copies != "sent" else [b"sent"])
        Path(f"{folder}/new").replace(f"{folder}/weights")  # of several steps

    begun, stepped, inbox = threading.Semaphore(0), threading.Semaphore(0), queue.Queue[dict[str, torch.Tensor]]()
    state = {name: value.clone() if copies == "before" else value for name, value in model.state_dict().items()}
    inbox.put(state)
    thread = threading.Thread(target=write, args=({} if queued else state,))
    for number in range(len(state) + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if number:
            stepped.release()
        else:
            thread.start()
            begun.acquire()
    thread.join()
