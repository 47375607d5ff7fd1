import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from feeder import BackgroundFeeder, RecordFile


def mlp(sizes, act):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def reduce_gradients(module):
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--batch-size", type=int, default=48)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--latent", type=int, default=16)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen = mlp([args.latent, 256, 512, args.dim], nn.SiLU)
    disc = mlp([args.dim, 512, 256, 1], lambda: nn.LeakyReLU(0.2))
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.99))
    d_opt = torch.optim.Adam(disc.parameters(), lr=2e-4, betas=(0.5, 0.99))
    torch.manual_seed(50 + rank)
    feeder = BackgroundFeeder(RecordFile(rank, dim=args.dim), args.batch_size, seed=rank + 2)

    for step in range(args.steps):
        real = feeder.next()
        fake = gen(torch.randn(len(real), args.latent))

        d_opt.zero_grad(set_to_none=True)
        up, down = disc(real), disc(fake.detach())
        d_loss = bce(up, torch.ones_like(up)) + bce(down, torch.zeros_like(down))
        d_loss.backward()
        reduce_gradients(disc)
        d_opt.step()

        g_opt.zero_grad(set_to_none=True)
        score = disc(fake)
        g_loss = bce(score, torch.ones_like(score))
        g_loss.backward()
        reduce_gradients(gen)
        g_opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f}", flush=True)
    feeder.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
