"""GAN training with two optimizers, lazy R1 regularisation and an EMA generator (StyleGAN2 recipe, tiny)."""
import argparse
import copy
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Generator(nn.Module):
    def __init__(self, z=32, ch=48):
        super().__init__()
        self.fc = nn.Linear(z, ch * 16)
        self.net = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, 1, 1), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch // 2, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch // 2, 1, 3, 1, 1))
        self.ch = ch

    def forward(self, z):
        return torch.tanh(self.net(self.fc(z).view(-1, self.ch, 4, 4)))


class Discriminator(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, 2 * ch, 3, 2, 1),
                                 nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2 * ch * 16, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, x):
        return self.net(x)


def blobs(n):
    g = torch.Generator().manual_seed(4)
    c = torch.rand(n, 2, 1, 1, generator=g) * 8 + 4
    yy, xx = torch.meshgrid(torch.arange(16.), torch.arange(16.), indexing="ij")
    return TensorDataset(2 * torch.exp(-((xx - c[:, :1]) ** 2 + (yy - c[:, 1:]) ** 2) / 6) - 1)


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad_(flag)


def accumulate(ema, model, decay):
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 1 - decay)


def sample_data(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for (x,) in loader:
            yield x
        epoch += 1


def d_r1(real_pred, real):
    grad, = torch.autograd.grad(real_pred.sum(), real, create_graph=True)
    return grad.pow(2).flatten(1).sum(1).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--r1", type=float, default=2.0)
    ap.add_argument("--d-reg-every", type=int, default=8)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    g_net, d_net = Generator(), Discriminator()
    g_ema = copy.deepcopy(g_net).eval().requires_grad_(False)     # follows g, which is the same everywhere
    gen, disc = DDP(g_net, broadcast_buffers=False), DDP(d_net, broadcast_buffers=False)
    ratio = args.d_reg_every / (args.d_reg_every + 1)
    g_optim = torch.optim.Adam(gen.parameters(), lr=args.lr, betas=(0.0, 0.99))
    d_optim = torch.optim.Adam(disc.parameters(), lr=args.lr * ratio, betas=(0.0 ** ratio, 0.99 ** ratio))
    ds = blobs(2048)
    sampler = DistributedSampler(ds, world, rank, shuffle=True, drop_last=True)
    stream = sample_data(DataLoader(ds, args.batch, sampler=sampler, drop_last=True), sampler)
    torch.manual_seed(1000 + rank)            # latents differ per process
    t0 = time.time()
    r1 = torch.zeros(())
    for i in range(args.iters):
        real = next(stream)
        requires_grad(gen, False)
        requires_grad(disc, True)
        fake = gen(torch.randn(len(real), 32))
        pred = disc(torch.cat([fake, real]))
        fake_pred, real_pred = pred.chunk(2)
        d_loss = F.softplus(fake_pred).mean() + F.softplus(-real_pred).mean()
        disc.zero_grad()
        d_loss.backward()
        d_optim.step()

        if i % args.d_reg_every == 0:
            real.requires_grad_(True)
            real_pred = disc(real)
            r1 = d_r1(real_pred, real)
            disc.zero_grad()
            # the zero term keeps the last bias in the graph
            (args.r1 / 2 * r1 * args.d_reg_every + 0 * real_pred.sum()).backward()
            d_optim.step()

        requires_grad(gen, True)
        requires_grad(disc, False)
        fake = gen(torch.randn(args.batch, 32))
        g_loss = F.softplus(-disc(fake)).mean()
        gen.zero_grad()
        g_loss.backward()
        g_optim.step()
        accumulate(g_ema, g_net, 0.5 ** (args.batch * world / 2000))
        if i % 20 == 0:
            stats = torch.stack([d_loss.detach(), g_loss.detach(), r1.detach()])
            dist.reduce(stats, dst=0)
            if rank == 0:
                d, g, r = (stats / world).tolist()
                print(f"iter {i} d {d:.3f} g {g:.3f} r1 {r:.4f} {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save({"g": g_net.state_dict(), "g_ema": g_ema.state_dict(), "d": d_net.state_dict()}, os.path.join(out, "gan.pt"))
        with torch.no_grad():
            s = g_ema(torch.randn(64, 32))
        print(f"sample mean {s.mean():.3f} (data {ds.tensors[0].mean():.3f})")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
