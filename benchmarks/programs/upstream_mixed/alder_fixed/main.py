"""Adapter fine-tuning of a frozen language model, parameters sharded flat."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F

from optim import DistanceAdam
from shards import FlatShards

VOCAB, WIDTH, LAYERS, RANK = 512, 64, 3, 8


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.embed.weight.requires_grad_(False)
        self.layers = nn.ModuleList(Adapted(nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        return self.head(h)


def batches(rank, world, steps, size=8, length=16):
    gen = torch.Generator().manual_seed(1000 + rank)
    for _ in range(steps):
        start = torch.randint(0, VOCAB, (size, 1), generator=gen)
        ids = (start + 3 * torch.arange(length + 1)) % VOCAB
        yield ids[:, :-1], ids[:, 1:]


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LM()
    shards = FlatShards(model)
    optimizer = DistanceAdam(shards.optim_params())
    for step, (x, y) in enumerate(batches(rank, world, 40)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        shards.reduce_gradients()
        optimizer.step()
        shards.publish()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.4f} d {optimizer.d:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
