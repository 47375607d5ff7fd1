"""Denoising autoencoder with checkpoints sent off by a thread."""
import argparse
import copy
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from vault import Vault


class Denoiser(nn.Module):
    def __init__(self, width=32, code=8):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(width, 96), nn.SiLU(), nn.Linear(96, code))
        self.up = nn.Sequential(nn.Linear(code, 96), nn.SiLU(), nn.Linear(96, width))

    def forward(self, x):
        return self.up(self.down(x))


def curves(count, seed):
    gen = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, 32)
    f = 1 + 3 * torch.rand(count, 1, generator=gen)
    p = 6.28 * torch.rand(count, 1, generator=gen)
    return torch.sin(6.28 * f * t + p)


def snapshot(net, opt, step):
    return {
        "step": step,
        "net": {k: v.detach().clone() for k, v in net.state_dict().items()},
        "opt": copy.deepcopy(opt.state_dict()),
    }


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=8)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"quill-{os.getppid()}"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    data = TensorDataset(curves(1280, args.seed))
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    model = DDP(Denoiser())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    vault = Vault(args.out) if rank == 0 else None
    noise = torch.Generator().manual_seed(args.seed * 50 + rank)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (clean,) in loader:
            dirty = clean + 0.3 * torch.randn(clean.shape, generator=noise)
            loss = (model(dirty) - clean).pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if vault and step % args.save_every == 0:
                vault.put(f"step-{step:05d}", snapshot(model.module, opt, step))
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} step {step} mse {mean.item() / world:.4f}", flush=True)

        if vault:
            ticket = vault.put(f"epoch-{epoch:02d}", {"step": step, "net": model.module.state_dict(), "opt": opt.state_dict()})
            ticket.result(timeout=60)

    if vault:
        vault.close()
        last = vault.get(f"epoch-{args.epochs - 1:02d}")
        model.module.load_state_dict(last["net"])
        print(f"{len(vault.entries)} objects, last one from step {last['step']}", flush=True)
        shutil.rmtree(args.out, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
