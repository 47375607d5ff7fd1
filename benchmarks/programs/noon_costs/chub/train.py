import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ResMLP(nn.Module):
    def __init__(self, inputs=128, dim=512, depth=6, classes=20):
        super().__init__()
        self.inp = nn.Linear(inputs, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


class Checkpointer:
    def __init__(self, folder, every, keep=2):
        self.folder, self.every, self.keep = folder, every, keep
        self.files = []
        self.rank = dist.get_rank()
        if self.rank == 0:
            os.makedirs(folder, exist_ok=True)

    def maybe_save(self, step, model, optimizer, sampler_state):
        if step % self.every:
            return
        if self.rank == 0:
            path = os.path.join(self.folder, f"step-{step:06d}.pt")
            torch.save({"step": step, "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(), "sampler": sampler_state}, path + ".tmp")
            os.replace(path + ".tmp", path)
            self.files.append(path)
            while len(self.files) > self.keep:
                os.remove(self.files.pop(0))
        dist.barrier()


def gaussian_mixture(n, inputs=128, classes=20, seed=0):
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, inputs, generator=g) * 0.5
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(means[y] + torch.randn(n, inputs, generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--save-every", type=int, default=32)
    ap.add_argument("--folder", default="/tmp/chub_ckpt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(31)
    model = DDP(ResMLP())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = gaussian_mixture(16384)
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    ckpt = Checkpointer(args.folder, args.save_every)
    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            ckpt.maybe_save(step, model, opt, {"epoch": epoch, "step": step})
            if step % 16 == 0 and rank == 0:
                print(f"step {step} loss {loss.item():.4f} {step / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
