import json
import pathlib
import time

import torch


class Recorder:
    """Writes per-step statistics as json lines. Only the first process keeps one."""

    def __init__(self, folder, bins=40):
        self.path = pathlib.Path(folder)
        self.path.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path / "steps.jsonl", "w")
        self.bins = bins
        self.began = time.time()

    def histogram(self, t):
        t = t.detach().float().flatten()
        lo, hi = t.min().item(), t.max().item()
        return {"lo": lo, "hi": hi, "n": torch.histc(t, self.bins, lo, hi + 1e-9).tolist()}

    def write(self, step, model, scalars):
        row = {"step": step, "t": time.time() - self.began, **scalars}
        row["weights"] = {n: self.histogram(p) for n, p in model.named_parameters()}
        row["grads"] = {n: self.histogram(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()
