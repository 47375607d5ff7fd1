import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PLAYERS = [0, 1]
JUDGE = 2


class Generator(nn.Module):
    def __init__(self, z=32, out=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, out))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 384), nn.LeakyReLU(0.2), nn.Linear(384, 1))

    def forward(self, x):
        return self.net(x)


def real_batch(n, gen):
    return torch.randn(n, 64, generator=gen) * 0.5 + 1.0


def copy_weights(module):
    for t in module.state_dict().values():
        dist.broadcast(t, src=PLAYERS[0])


def play(args, group, rank):
    gen = torch.Generator().manual_seed(900 + rank)
    g = DDP(Generator(), process_group=group)
    d = DDP(Critic(), process_group=group)
    g_opt = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.0, 0.9))
    d_opt = torch.optim.Adam(d.parameters(), lr=4e-4, betas=(0.0, 0.9))
    for it in range(1, args.iters + 1):
        for _ in range(args.n_critic):
            with torch.no_grad():
                fake = g(torch.randn(args.batch, 32, generator=gen))
            d_opt.zero_grad(set_to_none=True)
            scores = d(torch.cat([real_batch(args.batch, gen), fake]))
            real, made = scores.split(args.batch)
            loss = F.relu(1 - real).mean() + F.relu(1 + made).mean()
            loss.backward()
            d_opt.step()
        for p in d.parameters():
            p.requires_grad_(False)
        g_opt.zero_grad(set_to_none=True)
        g_loss = -d.module(g(torch.randn(args.batch, 32, generator=gen))).mean()
        g_loss.backward()
        g_opt.step()
        for p in d.parameters():
            p.requires_grad_(True)
        if it % args.judge_every == 0:
            copy_weights(g.module)


def judge(args):
    g = Generator()
    gen = torch.Generator().manual_seed(77)
    for _ in range(args.iters // args.judge_every):
        copy_weights(g)
        with torch.no_grad():
            x = g(torch.randn(2048, 32, generator=gen))
        print("mean", round(x.mean().item(), 3), "std", round(x.std().item(), 3), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=160)
    p.add_argument("--n_critic", type=int, default=3)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--judge_every", type=int, default=40)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    group = dist.new_group(PLAYERS)
    if rank == JUDGE:
        judge(args)
    else:
        play(args, group, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
