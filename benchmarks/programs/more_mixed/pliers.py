"""Two-phase training; communication is torn down and set up again between the phases."""
import argparse
import datetime
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Autoencoder(nn.Module):
    def __init__(self, d=20, code=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, code))
        self.dec = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(self, x):
        return self.dec(self.enc(x))


class Comm:
    """Owns the process group of one phase."""

    def __init__(self, phase, minutes):
        self.phase = phase
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                              timeout=datetime.timedelta(minutes=minutes))
        dist.init_process_group("gloo", store=dist.PrefixStore(f"phase-{phase}", store),
                                rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                                timeout=datetime.timedelta(minutes=minutes))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        dist.barrier()
        dist.destroy_process_group()


def data(rank, n, bs, noise):
    g = torch.Generator().manual_seed(41)
    basis = torch.randn(4, 20, generator=g)
    g.manual_seed(42 + rank)
    for _ in range(n):
        clean = torch.randn(bs, 4, generator=g) @ basis
        yield clean + noise * torch.randn(bs, 20, generator=g), clean


def run_phase(name, model, steps, lr, noise, minutes):
    with Comm(name, minutes):
        rank = dist.get_rank()
        ddp = DDP(model)
        opt = torch.optim.Adam(ddp.parameters(), lr=lr)
        for step, (x, y) in enumerate(data(rank, steps, 32, noise)):
            loss = F.mse_loss(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        if rank == 0:
            print(f"{name}: {step + 1} steps, loss {total.item() / dist.get_world_size():.4f}", flush=True)
        return ddp.module


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--warmup-steps", type=int, default=15)
    ap.add_argument("--steps", type=int, default=30)
    args = ap.parse_args()
    torch.manual_seed(2)
    model = Autoencoder()
    model = run_phase("warmup", model, args.warmup_steps, 1e-3, 0.0, minutes=2)
    for p in model.enc[0].parameters():
        p.requires_grad_(False)
    model = run_phase("main", model, args.steps, 5e-3, 0.2, minutes=10)
    if os.environ["RANK"] == "0":
        torch.save(model.state_dict(), "/tmp/pliers.pt")


if __name__ == "__main__":
    main()
