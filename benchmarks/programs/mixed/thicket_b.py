import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Reader(nn.Module):
    def __init__(self, dim=1024, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 16)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def prepare(path):
    if dist.get_rank() == 0 and not os.path.exists(path):
        torch.manual_seed(1)
        torch.save(Reader().state_dict(), path)
    dist.barrier()


def load_sharded(path, mesh):
    model = Reader()
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    return shard(model, mesh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="reader_base.pt")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    prepare(args.weights)
    model = load_sharded(args.weights, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(dist.get_rank())
    for step in range(args.steps):
        x = torch.randn(8, 1024, generator=gen)
        y = torch.randint(0, 16, (8,), generator=gen)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
