"""Autoencoder with EMA; regular monitoring of nearest-neighbour quality in the latent space."""
import argparse
import copy
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("ae")


def curves(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 6.28, 64)
    k = torch.randint(1, 6, (n, 1), generator=g)
    ph = 6.28 * torch.rand(n, 1, generator=g)
    return torch.sin(k * t + ph) + 0.1 * torch.randn(n, 64, generator=g), k.squeeze(1)


class AE(nn.Module):
    def __init__(self, z=6, w=128):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, z))
        self.dec = nn.Sequential(nn.Linear(z, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, 64))

    def forward(self, x):
        return self.dec(self.enc(x))


class Monitor:
    """Reconstruction error and latent k-NN agreement of the EMA network on the validation curves."""

    def __init__(self, x, y, k=5, chunk=100):
        self.x, self.y, self.k, self.chunk = x, y, k, chunk

    def part(self):
        return torch.arange(dist.get_rank(), len(self.x), dist.get_world_size())

    @torch.no_grad()
    def run(self, net):
        z = net.enc(self.x)
        err, hit, n = 0.0, 0.0, 0
        for idx in self.part().split(self.chunk):
            rec = net.dec(z[idx])
            err += (rec - self.x[idx]).pow(2).mean(1).sum().item()
            d = (z[idx][:, None, :] - z[None, :, :]).abs().sum(-1)
            near = d.topk(self.k + 1, largest=False).indices[:, 1:]
            hit += (self.y[near] == self.y[idx][:, None]).float().mean(1).sum().item()
            n += len(idx)
        return torch.tensor([err, hit, n], dtype=torch.float64)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--eval-every", type=int, default=6)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--ema", type=float, default=0.95)
    p.add_argument("--val", type=int, default=2400)
    p.add_argument("--seed", type=int, default=80)
    p.add_argument("--out", default="ae_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed)
    ds = TensorDataset(*curves(1536, 1))
    sampler = DistributedSampler(ds, seed=a.seed, drop_last=True)
    loader = DataLoader(ds, a.batch, sampler=sampler, drop_last=True)
    net = AE()
    ema = copy.deepcopy(net).requires_grad_(False)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    monitor = Monitor(*curves(a.val, 2))
    step, epoch, t0, acc, best = 0, 0, time.time(), torch.zeros(2), float("inf")
    while step < a.steps:
        sampler.set_epoch(epoch)
        for x, _ in loader:
            loss = F.mse_loss(model(x), x)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            with torch.no_grad():
                for e, q in zip(ema.parameters(), net.parameters()):
                    e.lerp_(q, 1 - a.ema)
            acc += torch.stack([loss.detach(), torch.tensor(1.0)])
            step += 1
            if step % a.eval_every == 0:
                stats = monitor.run(ema)
                dist.all_reduce(stats)
                if rank == 0:
                    mse, knn = (stats[:2] / stats[2]).tolist()
                    log.info("step %d train %.4f ema mse %.4f knn %.3f (%d curves) %.1fs", step, acc[0] / acc[1], mse, knn, int(stats[2]), time.time() - t0)
                    if mse < best:
                        best = mse
                        os.makedirs(a.out, exist_ok=True)
                        torch.save({"net": net.state_dict(), "ema": ema.state_dict(), "step": step}, os.path.join(a.out, "best.pt"))
                acc.zero_()
            if step == a.steps:
                break
        epoch += 1
    dist.barrier()
    log.info("done in %.1fs", time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
