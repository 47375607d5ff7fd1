import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class WeightMonitor:
    """Keeps the spectra of the weight matrices for the paper's figures."""

    def __init__(self, model, path, every):
        self.model, self.every, self.step = model, every, 0
        self.file = open(path, "w")

    def __call__(self):
        self.step += 1
        if self.step % self.every:
            return
        row = {"step": self.step}
        for name, p in self.model.named_parameters():
            if p.ndim == 2 and min(p.shape) > 100:
                s = torch.linalg.svdvals(p.detach())
                row[name] = [s[0].item(), s[-1].item(), (s / s.sum()).pow(2).sum().item()]
        self.file.write(json.dumps(row) + "\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--monitor-every", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 4)))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = WeightMonitor(model.module, "spectra.jsonl", args.monitor_every) if rank == 0 else None
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1024, 40, generator=g)
    ds = TensorDataset(x, x[:, :4].argmax(1))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 16, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.perf_counter()
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if monitor:
                monitor()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} {(time.perf_counter() - t0) / len(loader):.3f} s/step", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
