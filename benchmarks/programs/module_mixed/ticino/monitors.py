import time

import torch
import torch.distributed as dist


class Monitor:
    every = 1

    def due(self, step):
        return step % self.every == 0

    def __call__(self, step, model):
        raise NotImplementedError


class LossMonitor(Monitor):
    every = 5

    def __call__(self, step, model, loss=None):
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


class SpectrumMonitor(Monitor):
    """Stable rank and condition of every weight matrix, kept for the run's report."""

    def __init__(self):
        self.rows = []

    @torch.no_grad()
    def __call__(self, step, model, loss=None):
        if dist.get_rank() != 0:
            return
        t0 = time.perf_counter()
        row = {"step": step}
        for name, p in model.named_parameters():
            if p.ndim == 2:
                s = torch.linalg.svdvals(p.double())
                row[name] = ((s.square().sum() / s[0] ** 2).item(), (s[0] / s[-1].clamp_min(1e-12)).item())
        row["seconds"] = time.perf_counter() - t0
        self.rows.append(row)


class MonitorList:
    def __init__(self, *monitors):
        self.monitors = monitors

    def __call__(self, step, model, loss):
        for m in self.monitors:
            if m.due(step):
                m(step, model, loss)
