import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from wrap import TrainableModel, accumulation_context, parallelise


class WideNet(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(),
                                 nn.Linear(d, 5))

    def forward(self, x):
        return self.net(x)


def data(n=2048):
    g = torch.Generator().manual_seed(71)
    x = torch.randn(n, 20, generator=g)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long() + 2 * (x[:, 2] > 1).long())


class GradAccumTrainer:
    def __init__(self, model, opt, accum):
        self.model, self.opt, self.accum = model, opt, accum

    def step(self, micro):
        self.opt.zero_grad()
        for k, batch in enumerate(micro):
            with accumulation_context(self.model, last=k == len(micro) - 1):
                (self.model(batch) / len(micro)).backward()
        self.opt.step()

    def windows(self, loader):
        buf = []
        for batch in loader:
            buf.append(batch)
            if len(buf) == self.accum:
                yield buf
                buf = []


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--accum", type=int, default=8)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--steps", type=int, default=12)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(19)
    model = TrainableModel(parallelise(WideNet()), nn.CrossEntropyLoss())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ds = data()
    loader = DataLoader(ds, batch_size=args.batch, sampler=DistributedSampler(ds, seed=5), drop_last=True)
    trainer = GradAccumTrainer(model, opt, args.accum)
    for n, micro in zip(range(args.steps), trainer.windows(loader)):
        trainer.step(micro)
        if n % 4 == 0 and dist.get_rank() == 0:
            print(f"step {n} loss {model.smooth:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
