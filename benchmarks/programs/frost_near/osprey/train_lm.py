import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from parallel import (EmbeddingTie, clip_model_norm, recv_backward, recv_forward,
                      send_backward, send_forward)


class Mixer(nn.Module):
    def __init__(self, width, seq):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.shift = nn.Parameter(torch.full((width,), 0.5))
        self.ff = nn.Sequential(nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))

    def forward(self, x):
        h = self.norm(x)
        prev = F.pad(h, (0, 0, 1, 0))[:, :-1]
        return x + self.ff(h + self.shift * prev)


class Stage(nn.Module):
    def __init__(self, rank, world, a):
        super().__init__()
        self.rank, self.world = rank, world
        self.word = None
        if rank in (0, world - 1):
            self.word = nn.Parameter(torch.randn(a.vocab, a.width) * 0.1)
        self.blocks = nn.Sequential(*[Mixer(a.width, a.seq) for _ in range(2)])

    def forward(self, x):
        if self.rank == 0:
            x = F.embedding(x, self.word)
        x = self.blocks(x)
        if self.rank == self.world - 1:
            x = F.linear(x, self.word)
        return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--micro", type=int, default=3)
    p.add_argument("--mbs", type=int, default=8)
    p.add_argument("--seq", type=int, default=20)
    p.add_argument("--vocab", type=int, default=50)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--clip", type=float, default=0.25)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30 + rank)
    stage = Stage(rank, world, a)
    tie = EmbeddingTie(stage.word, 0, world - 1)
    tie.broadcast()
    params = list(stage.parameters())
    counted = [q for q in params if not (q is stage.word and rank == world - 1)]
    opt = torch.optim.AdamW(params, lr=4e-3)
    g = torch.Generator().manual_seed(77)
    succ = torch.randperm(a.vocab, generator=g)
    shape = (a.mbs, a.seq, a.width)

    for step in range(a.steps):
        tokens = torch.randint(0, a.vocab, (a.micro, a.mbs, a.seq), generator=g)
        target = succ[tokens]
        opt.zero_grad()
        pending, loss_sum = [], torch.zeros(())
        for m in range(a.micro):
            x = tokens[m] if rank == 0 else recv_forward(shape, rank)
            y = stage(x)
            if rank == world - 1:
                y = F.cross_entropy(y.flatten(0, 1), target[m].flatten()) / a.micro
                loss_sum += y.detach()
            else:
                send_forward(y, rank)
            pending.append((x, y))
        for x, y in pending:
            y.backward(None if rank == world - 1 else recv_backward(shape, rank))
            if rank > 0:
                send_backward(x.grad, rank)
        tie.sum_grads()
        norm = clip_model_norm(params, counted, a.clip)
        opt.step()
        if rank == world - 1 and step % 7 == 0:
            print(f"step {step} loss {loss_sum:.4f} norm {norm:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
