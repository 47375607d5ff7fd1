import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from spectrum import FeatureSpectrum


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class SensorNet(nn.Module):
    def __init__(self, d_in=12, tokens=40, dim=192, depth=3, classes=6):
        super().__init__()
        self.inp = nn.Linear(d_in, dim)
        self.blocks = nn.ModuleList(Mixer(tokens, dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def sensors(n, seed, classes=6):
    shared = torch.Generator().manual_seed(0)
    proto = torch.randn(classes, 40, 12, generator=shared) * 0.3
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(proto[y] + torch.randn(n, 40, 12, generator=g), y)


class Runner:
    def __init__(self, args):
        self.args, self.rank, self.world = args, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(92)
        self.net = SensorNet()
        self.model = DDP(self.net)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        train, val = sensors(args.samples, 1), sensors(256, 2)
        self.sampler = DistributedSampler(train, self.world, self.rank, seed=8)
        self.loader = DataLoader(train, args.batch_size, sampler=self.sampler, drop_last=True)
        self.val = DataLoader(val, 64, sampler=DistributedSampler(val, self.world, self.rank, shuffle=False))

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        tap = FeatureSpectrum({f"block{i}": b for i, b in enumerate(self.net.blocks)})
        score = torch.zeros(2)
        for x, y in self.val:
            score += torch.tensor([(self.net(x).argmax(1) == y).sum().item(), len(y)])
        tap.detach()
        self.net.train()
        dist.all_reduce(score)
        return (score[0] / score[1]).item(), tap.summary()

    def fit(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            begin = time.perf_counter()
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
            took = time.perf_counter() - begin
            acc, spectrum = self.evaluate()
            if self.rank == 0:
                print(f"epoch {epoch} acc {acc:.3f} rank {spectrum['block2']:.1f} ({took:.1f}s)", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=22)
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    ns = parser.parse_args()
    dist.init_process_group("gloo")
    Runner(ns).fit()
    dist.destroy_process_group()
