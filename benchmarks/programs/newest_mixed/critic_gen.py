"""WGAN-GP on a ring of Gaussians: five critic updates per generator update."""
import math
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, o))


def real_batch(g, n=64):
    k = torch.randint(0, 8, (n,), generator=g)
    c = torch.stack([torch.cos(k * math.pi / 4), torch.sin(k * math.pi / 4)], 1) * 2
    return c + 0.05 * torch.randn(n, 2, generator=g)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    gen, critic = DDP(mlp(8, 2), broadcast_buffers=False), DDP(mlp(2, 1), broadcast_buffers=False)
    g_opt = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    d_opt = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
    rng = torch.Generator().manual_seed(77 + rank)
    for it in range(40):
        for p in critic.parameters():
            p.requires_grad_(True)
        for _ in range(5):
            real = real_batch(rng)
            with torch.no_grad():
                fake = gen.module(torch.randn(64, 8, generator=rng))
            a = torch.rand(64, 1, generator=rng)
            mix = (a * real + (1 - a) * fake).requires_grad_()
            out = critic(torch.cat([real, fake, mix]))
            r, f, m = out.chunk(3)
            gp = torch.autograd.grad(m.sum(), mix, create_graph=True)[0].norm(dim=1)
            d_loss = f.mean() - r.mean() + 10 * ((gp - 1) ** 2).mean()
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()
        for p in critic.parameters():
            p.requires_grad_(False)
        g_loss = -critic.module(gen(torch.randn(64, 8, generator=rng))).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        if rank == 0 and it % 5 == 0:
            print(f"it {it} critic {d_loss.item():.3f} generator {g_loss.item():.3f}", flush=True)
    for net in (gen.module, critic.module):
        for p in net.parameters():
            ref = p.detach().clone()
            dist.broadcast(ref, 0)
            assert torch.allclose(ref, p, atol=1e-6), rank
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
