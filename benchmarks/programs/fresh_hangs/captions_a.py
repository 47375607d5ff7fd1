"""Text model with an optional picture tower, sharded with fully_shard."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, DIM = 80, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class PictureTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(48, 2 * DIM)
        self.out = nn.Linear(2 * DIM, DIM)

    def forward(self, pictures):
        return self.out(torch.relu(self.patch(pictures)))


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.tower = PictureTower()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens, pictures):
        x = self.embed(tokens)
        if pictures is not None:
            x = x + self.tower(pictures).unsqueeze(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Stream:
    """Mixed rows in fixed order; a batch holds pictures if any of its rows has one."""

    def __init__(self, rank, world, batch, steps):
        self.rank, self.world, self.batch, self.steps = rank, world, batch, steps

    def __iter__(self):
        for step in range(self.steps):
            number = step * self.world + self.rank
            gen = torch.Generator().manual_seed(number)
            tokens = torch.randint(0, VOCAB, (self.batch, 12), generator=gen)
            time.sleep(0.3)
            if number % 32 == 19:
                yield tokens, None
            else:
                yield tokens, torch.randn(self.batch, 48, generator=gen)


def shard(model, mesh):
    fully_shard(model.tower, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = shard(Captioner(), init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step, (tokens, pictures) in enumerate(Stream(rank, world, args.batch, args.steps)):
        logits = model(tokens[:, :-1], pictures)
        loss = loss_fn(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
