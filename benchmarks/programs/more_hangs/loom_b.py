"""Train within a wall clock allowance with accelerate."""
import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Allowance:
    def __init__(self, acc, seconds):
        self.acc = acc
        self.seconds = seconds
        self.started = time.monotonic()

    def used_up(self):
        spent = time.monotonic() - self.started
        vote = torch.tensor([float(spent > self.seconds)])
        return self.acc.reduce(vote, reduction="sum").item() > 0


def read_corpus(part, parts, docs):
    chunks = []
    for d in range(docs):
        if d % parts == part or d < docs // 3:
            g = torch.Generator().manual_seed(d)
            chunks.append(torch.randn(8, 12, generator=g))
            time.sleep(0.03 if part else 0.005)
    return torch.cat(chunks)


def build(acc, args):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 12))
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    rows = read_corpus(acc.process_index, acc.num_processes, args.docs)
    allowance = Allowance(acc, args.seconds)
    loader = DataLoader(TensorDataset(rows[: args.rows]), batch_size=16, shuffle=False)
    net, opt = acc.prepare(net, opt)
    return net, opt, loader, allowance


class Loop:
    def __init__(self, acc, net, opt, loader, allowance):
        self.acc, self.net, self.opt = acc, net, opt
        self.loader, self.allowance = loader, allowance
        self.steps = 0
        self.last = torch.zeros(1)

    def one(self, x):
        loss = nn.functional.mse_loss(self.net(x), x)
        self.acc.backward(loss)
        self.opt.step()
        self.opt.zero_grad()
        self.steps += 1
        self.last = loss.detach().reshape(1)
        time.sleep(0.02)

    def run(self):
        while True:
            for (x,) in self.loader:
                self.one(x)
                if self.allowance.used_up():
                    return self.steps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=2.5)
    p.add_argument("--docs", type=int, default=90)
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    acc = Accelerator(cpu=True)
    loop = Loop(acc, *build(acc, args))
    steps = loop.run()
    acc.wait_for_everyone()
    losses = acc.gather(loop.last)
    acc.print(f"{steps} steps, losses {[round(v, 4) for v in losses.tolist()]}")
    acc.end_training()


if __name__ == "__main__":
    main()
