"""A module of buffers beside the model that is wrapped: statistics, counts, masks. Ill ones and healthy ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


class RunningScale(nn.Module):
    """`synchronised`: it follows the data of all ranks."""

    def __init__(self, *, synchronised: bool = False) -> None:
        super().__init__()
        self.synchronised = synchronised
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros(()))

    def update(self, inputs: Tensor) -> None:
        size = torch.tensor(float(len(inputs)))
        total = inputs.sum(0)
        if self.synchronised:
            dist.all_reduce(size)
            dist.all_reduce(total)
        self.count += size
        self.mean += (total - size * self.mean) / self.count

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - self.mean


class Codebook(nn.Module):
    """Follows the rows that are next to each code by a moving average."""

    def __init__(self, *, synchronised: bool) -> None:
        super().__init__()
        self.synchronised = synchronised
        self.register_buffer("codes", torch.randn(6, 8))
        self.register_buffer("sums", self.codes.clone())
        self.register_buffer("counts", torch.ones(6))

    @torch.no_grad()
    def follow(self, rows: Tensor, index: Tensor) -> None:
        near = nn.functional.one_hot(index, 6).float()
        counts, sums = near.sum(0), near.T @ rows
        if self.synchronised:
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.counts.lerp_(counts, 0.1)
        self.sums.lerp_(sums, 0.1)
        self.codes.copy_(self.sums / (self.counts + 1e-3).unsqueeze(1))

    def forward(self, rows: Tensor) -> Tensor:
        index = torch.cdist(rows.detach(), self.codes).argmin(1)
        found = self.codes[index].clone()
        self.follow(rows.detach(), index)
        return rows + (found - rows).detach()


class OwnNorm(nn.Module):
    """A batch normalisation written by hand: its running mean is for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            mean = rows.mean(0)
            self.seen.mul_(0.9).add_(mean.detach(), alpha=0.1)
        else:
            mean = self.seen
        return rows - mean


def coded(rank: int, world_size: int, *, kind: str) -> None:
    """Statistics in the wrapped model, which the wrapper broadcasts before each forward."""
    torch.manual_seed(0)
    middle = OwnNorm() if kind == "own norm" else Codebook(synchronised=kind == "synchronised")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for _ in range(STEPS):
        inputs = torch.randn(16, 8) + rank
        optimizer.zero_grad()
        cross_entropy(model(inputs), torch.randint(0, 4, (16,))).backward()
        optimizer.step()


class MeanLoss(nn.Module):
    """A metric of each rank's own, read at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, loss: Tensor) -> Tensor:
        self.total += loss.detach()
        return self.total


class Noise(nn.Module):
    """Keeps what it has drawn last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mask.shape != inputs.shape[1:]:
            raise ValueError(inputs.shape)
        self.mask = torch.bernoulli(torch.full((8,), 0.9))
        return inputs * self.mask


class Agent:
    def __init__(self, kind: str, sharded: str, late: int) -> None:
        torch.manual_seed(0)
        self.scale = RunningScale(synchronised=kind == "synchronised") if not late else nn.Identity()
        inside = [self.scale] if sharded == "inside" else []
        net = nn.Sequential(*inside, nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
        if sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(net)
        self.net = net if sharded else DistributedDataParallel(net)
        self.loss, self.noise = MeanLoss(), Noise()


def statistics(
    rank: int,
    world_size: int,
    *,
    kind: str,
    saving: tuple[int, ...] = (0,),
    sharded: str = "",
    folder: str = "",
    late: int = 0,
) -> None:
    """`kind`: `local`, `synchronised`, `first` (rank 0 alone updates them), `unused`, `others` (a metric and a mask). `sharded`:
    the model is, and they are `beside` or `inside` it. `folder`: all ranks save there. `late`: the first step that has one."""
    agent = Agent(kind, sharded, late)
    optimizer = torch.optim.SGD(agent.net.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(STEPS):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * world_size + rank))
        targets = inputs[:, :4].argmax(1)
        if late and step == late:
            agent.scale = RunningScale(synchronised=kind == "synchronised")
        if step >= late and (kind != "first" or rank == 0):
            agent.scale.update(inputs)
        seen = inputs if step < late or kind in ("unused", "others") or sharded == "inside" else agent.scale(inputs)
        optimizer.zero_grad()
        loss = cross_entropy(agent.net(agent.noise(seen) if kind == "others" else seen), targets)
        agent.loss(loss)
        loss.backward()
        optimizer.step()
    if folder:
        dcp.save({"net": get_model_state_dict(agent.net), "scale": agent.scale.state_dict()}, checkpoint_id=folder)
        return
    net = get_model_state_dict(agent.net, options=StateDictOptions(full_state_dict=True))
    if rank in saving:
        with tempfile.TemporaryDirectory() as own:
            torch.save({"net": net, "scale": agent.scale.state_dict()}, Path(own) / f"{rank}.pt")


class CentredLoss(nn.Module):
    """The centre is that of the rank's own batches, or of all ranks' (`synchronised`)."""

    def __init__(self, *, synchronised: bool) -> None:
        super().__init__()
        self.synchronised = synchronised
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        aims = (targets - self.center).softmax(-1)
        self.update(targets)
        return cross_entropy(outputs, aims)

    @torch.no_grad()
    def update(self, targets: Tensor) -> None:
        mean = targets.mean(0, keepdim=True)
        if self.synchronised:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.center.mul_(0.9).add_(mean, alpha=0.1)


class ShownLoss(nn.Module):
    """A mean that is kept to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shown", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = cross_entropy(outputs, targets.softmax(-1))
        self.shown.mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss


def centred(rank: int, world_size: int, *, kind: str) -> None:
    """A loss that keeps a centre beside the wrapped model, which rank 0 saves."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)))
    loss_of = ShownLoss() if kind == "shown" else CentredLoss(synchronised=kind == "synchronised")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * world_size + rank))
        optimizer.zero_grad()
        loss_of(net(inputs), inputs[:, :4]).backward()
        optimizer.step()
    if rank == 0:
        with tempfile.TemporaryDirectory() as own:
            torch.save({"net": net.module.state_dict(), "loss": loss_of.state_dict()}, Path(own) / "saved.pt")


class PlainScale:
    """No module. The mean is a tensor or an array."""

    def __init__(self, *, arrays: bool, synchronised: bool) -> None:
        self.mean: Any = np.zeros(8) if arrays else torch.zeros(8)
        self.count, self.synchronised = 0.0, synchronised

    def update(self, inputs: Tensor) -> None:
        total = inputs.mean(0)
        if self.synchronised:
            dist.all_reduce(total)
            total /= dist.get_world_size()
        self.count += 1
        found = total.numpy() if isinstance(self.mean, np.ndarray) else total
        self.mean = self.mean + (found - self.mean) / self.count

    def __call__(self, inputs: Tensor) -> Tensor:
        centred: Any = (inputs.double() - self.mean).float()
        return centred


class Meter:
    """A mean that is read, and nothing is made of it."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def update(self, loss: Tensor) -> None:
        self.total = self.total + loss.detach()
        self.count += 1

    def mean(self) -> Tensor:
        return self.total / self.count


def plain_statistics(rank: int, world_size: int, *, kind: str, arrays: bool = False, saving: bool = True) -> None:
    """`kind`: `local`, `synchronised`, `meter` (statistics that nothing is scaled by); `fitted` and `fitted together` before the
    training, to the data of each rank or of all."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)))
    alike = kind in ("synchronised", "fitted together")
    scale, meter = PlainScale(arrays=arrays, synchronised=alike), Meter()  # is made
    if kind.startswith("fitted"):
        scale.update(torch.randn(64, 8, generator=torch.Generator().manual_seed(rank)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2 * STEPS):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * world_size + rank))
        optimizer.zero_grad()
        loss = cross_entropy(net(inputs if kind == "meter" else scale(inputs)), inputs[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        meter.update(loss)
        if step >= 3 and kind in ("local", "synchronised"):
            scale.update(inputs)
    if rank == 0 and saving:
        with tempfile.TemporaryDirectory() as own:
            state = {"net": net.module.state_dict(), "mean": scale.mean, "shown": meter.mean()}
            torch.save(state, Path(own) / "saved.pt")


def two_stages(rank: int, world_size: int) -> None:
    """The optimizer of the first stage has stopped when the statistics are made."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)))
    scale = None
    for stage, steps in enumerate((6, 40)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if stage:
            scale = RunningScale()
        for step in range(steps):
            inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * world_size + rank))
            if scale is not None:
                scale.update(inputs)
            optimizer.zero_grad()
            cross_entropy(net(scale(inputs) if scale is not None else inputs), inputs[:, :4].argmax(1)).backward()
            optimizer.step()
    if rank == 0 and scale is not None:
        with tempfile.TemporaryDirectory() as own:
            torch.save({"net": net.module.state_dict(), "scale": scale.state_dict()}, Path(own) / "saved.pt")
