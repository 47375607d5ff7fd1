"""Small denoising diffusion model with EMA weights and a feature-statistics monitor."""
import argparse
import copy
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from monitor import FeatureMonitor
from unet import MiniUNet

LOG = logging.getLogger("ddpm")


class Schedule:
    def __init__(self, steps):
        beta = torch.linspace(1e-4, 0.06, steps)
        self.steps = steps
        self.alpha = 1 - beta
        self.abar = self.alpha.cumprod(0)

    def q(self, x, t, eps):
        a = self.abar[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * eps

    @torch.no_grad()
    def sample(self, net, shape, gen):
        x = torch.randn(shape, generator=gen)
        for t in reversed(range(0, self.steps, 4)):
            tt = torch.full((shape[0],), t)
            e = net(x, tt)
            a = self.abar[t]
            prev = self.abar[t - 4] if t >= 4 else torch.tensor(1.0)
            x0 = ((x - (1 - a).sqrt() * e) / a.sqrt()).clamp(-1.5, 1.5)
            x = prev.sqrt() * x0 + (1 - prev).sqrt() * e
        return x


class EMA:
    def __init__(self, net, decay):
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.decay, self.n = decay, 0

    @torch.no_grad()
    def update(self, net):
        self.n += 1
        d = min(self.decay, (1 + self.n) / (10 + self.n))
        for e, p in zip(self.net.parameters(), net.parameters()):
            e.lerp_(p, 1 - d)


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    c = 4 + 8 * torch.rand(n, 2, 2, generator=g)
    d = ((yy - c[:, :, 0, None, None]) ** 2 + (xx - c[:, :, 1, None, None]) ** 2) / 8
    return (torch.exp(-d).sum(1, keepdim=True) * 2 - 1).clamp(-1, 1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--diffusion-steps", type=int, default=40)
    p.add_argument("--ema", type=float, default=0.99)
    p.add_argument("--log-every", type=int, default=16)
    p.add_argument("--window", type=int, default=16)
    p.add_argument("--channels", type=int, default=16)
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--out", default="ddpm_out")
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(args.seed)
    sched = Schedule(args.diffusion_steps)
    net = MiniUNet(args.channels, args.diffusion_steps)
    ema = EMA(net, args.ema)
    model = DDP(net)
    monitor = FeatureMonitor(net.mid, args.window)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    ds = TensorDataset(blobs(960, 1))
    sampler = DistributedSampler(ds, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    gen = torch.Generator().manual_seed(1000 * args.seed + rank)

    step, epoch, acc = 0, 0, torch.zeros(2)
    while step < args.steps:
        sampler.set_epoch(epoch)
        for (x,) in loader:
            t = torch.randint(0, sched.steps, (len(x),), generator=gen)
            eps = torch.randn(x.shape, generator=gen)
            loss = F.mse_loss(model(sched.q(x, t, eps), t), eps)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            ema.update(net)
            acc += torch.stack([loss.detach(), torch.tensor(1.0)])
            step += 1
            if step % args.log_every == 0:
                dist.all_reduce(acc)
                mean, spread = monitor.report()
                s = sched.sample(ema.net, (16, 1, 16, 16), gen)
                LOG.info("step %d loss %.4f feat %.3f/%.3f sample std %.3f", step, acc[0] / acc[1], mean, spread, s.std())
                acc.zero_()
            if step == args.steps:
                break
        epoch += 1
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"net": net.state_dict(), "ema": ema.net.state_dict(), "opt": opt.state_dict(), "step": step},
                   os.path.join(args.out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
