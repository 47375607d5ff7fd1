"""Denoising diffusion on short river-profile vectors (DDP + EMA sampling weights)."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diffusion import Denoiser, Schedule, sample
from ema import EMAHelper


def make_profiles(n, dim, seed=9):
    g = torch.Generator().manual_seed(seed)
    pos = torch.linspace(0, 1, dim)
    slope = torch.rand(n, 1, generator=g) * 2 - 1
    bend = torch.rand(n, 1, generator=g) * 4 + 1
    phase = torch.rand(n, 1, generator=g) * 6.28
    return slope * pos + 0.5 * torch.sin(bend * 6.28 * pos + phase)


class Runner:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.schedule = Schedule()
        model = Denoiser(args.dim)
        self.ema = EMAHelper(args.ema_rate)
        self.ema.register(model)
        self.model = DDP(model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        data = make_profiles(args.num_items, args.dim)
        self.reference = data
        ds = TensorDataset(data)
        self.sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
        self.loader = DataLoader(ds, args.batch_size, sampler=self.sampler, drop_last=True)
        torch.manual_seed(args.seed + 1 + self.rank)

    def loss(self, x):
        t = torch.randint(0, self.schedule.steps, (x.size(0),))
        eps = torch.randn_like(x)
        return F.mse_loss(self.model(self.schedule.add_noise(x, t, eps), t), eps)

    def train(self):
        step = 0
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            total = 0.0
            for (x,) in self.loader:
                loss = self.loss(x)
                self.opt.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.ema.update(self.model)
                total += loss.item()
                step += 1
            if self.rank == 0:
                print(f"epoch {epoch} step {step} loss {total / len(self.loader):.4f}", flush=True)

    def sample_and_score(self):
        net = copy.deepcopy(self.model.module)
        self.ema.ema(net)
        net.eval()
        gen = torch.Generator().manual_seed(500 + self.rank)
        x = sample(net, self.schedule, 128, self.args.dim, gen)
        moments = torch.stack([x.mean(0), x.pow(2).mean(0)])
        dist.all_reduce(moments)
        moments /= self.world
        target = torch.stack([self.reference.mean(0), self.reference.pow(2).mean(0)])
        return (moments - target).abs().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--num-items", type=int, default=8192)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--ema-rate", type=float, default=0.98)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    runner = Runner(args)
    runner.train()
    score = runner.sample_and_score()
    if runner.rank == 0:
        print(f"sample moment distance {score:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
