import time

import torch
import torch.distributed as dist
import torch.nn as nn


class ActivationWatch:
    """Collects quantiles of layer outputs for the epoch report."""

    Q = torch.tensor([0.01, 0.5, 0.99])

    def __init__(self):
        self.rows = {}

    def attach(self, net):
        self.rows = {}
        for name, m in net.named_modules():
            if isinstance(m, nn.Linear):
                m.register_forward_hook(self._hook(name))

    def _hook(self, name):
        def fn(module, args, out):
            if module.training:
                self.rows[name] = torch.quantile(out.detach().flatten(), self.Q)
        return fn

    def report(self):
        return " ".join(f"{k}:{v[0]:.1f}/{v[2]:.1f}" for k, v in list(self.rows.items())[:2])


class Trainer:
    def __init__(self, ddp, opt, batches, epochs, steps):
        self.ddp, self.opt, self.batches = ddp, opt, batches
        self.epochs, self.steps = epochs, steps
        self.watch = ActivationWatch()

    def epoch(self, e):
        self.ddp.train()
        self.watch.attach(self.ddp.module)
        total, t0 = 0.0, time.perf_counter()
        for _ in range(self.steps):
            x, y = self.batches()
            loss = nn.functional.mse_loss(self.ddp(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / self.steps, time.perf_counter() - t0

    def fit(self):
        for e in range(self.epochs):
            loss, sec = self.epoch(e)
            if dist.get_rank() == 0:
                print(f"epoch {e} loss {loss:.4f} {sec:.2f}s {self.watch.report()}", flush=True)
