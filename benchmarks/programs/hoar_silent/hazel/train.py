"""Sequence copying with a curriculum: length and batch size grow, stronger hosts take more rows."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from sync import average_gradients, broadcast_model

SHARES = {1: [1.0], 2: [0.6, 0.4], 3: [0.5, 0.3, 0.2], 4: [0.4, 0.3, 0.2, 0.1]}


class Seq2Tag(nn.Module):
    def __init__(self, vocab=12, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def plan(stage, world):
    total = 40 * (stage + 1)
    sizes = [int(round(total * s)) for s in SHARES[world]]
    return 6 + 4 * stage, sizes


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--stages", type=int, default=3)
    p.add_argument("--steps-per-stage", type=int, default=30)
    p.add_argument("--lr", type=float, default=5e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Seq2Tag()
    broadcast_model(model)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.StepLR(opt, args.steps_per_stage, gamma=0.6)
    gen = torch.Generator().manual_seed(800 + rank)
    for stage in range(args.stages):
        length, sizes = plan(stage, world)
        for step in range(args.steps_per_stage):
            x = torch.randint(0, 12, (sizes[rank], length), generator=gen)
            y = (x + x.roll(1, 1)) % 12
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / length
            opt.zero_grad()
            loss.backward()
            n = average_gradients(model.parameters(), sizes[rank])
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
        t = loss.detach().clone()
        dist.all_reduce(t)
        if rank == 0:
            print(f"stage {stage} length {length} sizes {sizes} loss {t.item() / n:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
