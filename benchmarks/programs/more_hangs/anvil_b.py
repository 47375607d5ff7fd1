"""Small classifier with a live score panel."""
import argparse

import torch
import torch.distributed as dist
import torchmetrics
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Panel:
    def __init__(self, metrics, every):
        self.metrics = metrics
        self.every = every
        self.lines = []

    def _row(self):
        return {k: round(float(m.compute()), 4) for k, m in self.metrics.items()}

    def _render(self, step, row):
        cells = " ".join(f"{k}={v}" for k, v in row.items())
        return f"[{step:04d}] {cells}"

    def refresh(self, step):
        if step % self.every:
            return None
        row = self._row()
        self.lines.append(self._render(step, row))
        return self.lines[-1]


class Session:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(4)
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=args.lr)
        self.metrics = {
            "acc": torchmetrics.classification.MulticlassAccuracy(num_classes=5),
            "loss": torchmetrics.MeanMetric(),
        }
        self.panel = Panel(self.metrics, args.panel_every)
        self.g = torch.Generator().manual_seed(40 + self.rank)

    def batch(self):
        x = torch.randn(24, 8, generator=self.g)
        return x, x[:, :5].argmax(1)

    def train_step(self):
        x, y = self.batch()
        out = self.net(x)
        loss = nn.functional.cross_entropy(out, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.metrics["acc"].update(out.detach(), y)
        self.metrics["loss"].update(loss.detach())

    def after_step(self, step):
        if self.rank == 0:
            text = self.panel.refresh(step)
            if text:
                print(text, flush=True)

    def fit(self):
        for step in range(1, self.args.steps + 1):
            self.train_step()
            self.after_step(step)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--panel-every", type=int, default=15)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("gloo")
    Session(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
