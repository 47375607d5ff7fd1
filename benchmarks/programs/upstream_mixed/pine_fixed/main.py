"""Three pipeline stages, micro-batches of varying length, 1F1B schedule."""
import datetime

import torch
import torch.distributed as dist
from torch import nn

from p2p import Channel
from schedule import one_f_one_b

VOCAB, WIDTH, MICRO = 200, 32, 6


def build(rank, world):
    torch.manual_seed(40 + rank)
    if rank == 0:
        return nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
    if rank == world - 1:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, VOCAB))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    module = build(rank, world)
    channel = Channel(rank, world)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(50)
    for step in range(25):
        rows = []
        for _ in range(MICRO):
            length = int(torch.randint(8, 24, (1,), generator=gen))
            start = torch.randint(0, VOCAB, (4, 1), generator=gen)
            rows.append((start + 7 * torch.arange(length + 1)) % VOCAB)

        def loss_fn(logits, i):
            return nn.functional.cross_entropy(logits.flatten(0, 1), rows[i][:, 1:].flatten())

        optimizer.zero_grad()
        loss = one_f_one_b(module, channel, rank, world, [r[:, :-1] for r in rows], loss_fn, MICRO)
        optimizer.step()
        if loss is not None and step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
