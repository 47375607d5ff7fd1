"""Tensor-parallel toy with a log of weight statistics."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

log = logging.getLogger("osier")


def setup_logging(rank):
    logging.basicConfig(format=f"[rank {rank}] %(levelname)s %(message)s")
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)


class Summary:
    """Mean and spread of a tensor, worked out when somebody wants to read it."""

    def __init__(self, name, tensor):
        self.name, self.tensor = name, tensor

    def values(self):
        tensor = self.tensor.detach()
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        return tensor.mean().item(), tensor.std().item()

    def __str__(self):
        mean, std = self.values()
        return f"{self.name}: {mean:+.4f} +- {std:.4f}"


class ShardedLinear(nn.Module):
    def __init__(self, mesh, fan_in, fan_out):
        super().__init__()
        torch.manual_seed(fan_in * fan_out)
        self.mesh = mesh
        self.weight = nn.Parameter(distribute_tensor(torch.randn(fan_out, fan_in) / fan_in**0.5, mesh, [Shard(0)]))

    def forward(self, x):
        part = x @ self.weight.to_local().t()
        return part


class Model(nn.Module):
    def __init__(self, mesh, width, heads):
        super().__init__()
        self.proj = ShardedLinear(mesh, width, heads)

    def loss(self, x):
        part = torch.tanh(self.proj(x))
        return (part - 0.5).square().sum(dim=1).mean()


class Trainer:
    def __init__(self, mesh, args):
        self.args = args
        self.model = Model(mesh, args.width, args.heads)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number):
        x = torch.randn(8, self.args.width, generator=torch.Generator().manual_seed(number))
        self.opt.zero_grad()
        loss = self.model.loss(x)
        loss.backward()
        self.opt.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item()

    def fit(self):
        for number in range(self.args.steps):
            total = self.step(number)
            if number % self.args.log_every == 0:
                log.info("step %d loss %.4f", number, total)
                for name, parameter in self.model.named_parameters():
                    log.info("%s", Summary(name, parameter))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--log-every", type=int, default=4)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--heads", type=int, default=9)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    setup_logging(dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    Trainer(mesh, args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
