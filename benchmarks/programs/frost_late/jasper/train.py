import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from norm import RunningNorm


class Env:
    def __init__(self, rank):
        self.scale = torch.tensor([1.0, 10.0, 0.1])[rank]
        self.shift = torch.tensor([0.0, 50.0, -3.0])[rank]

    def sample(self, step, rank, n=32):
        g = torch.Generator().manual_seed(step * 16 + rank)
        z = torch.randn(n, 5, generator=g)
        return z * self.scale + self.shift, torch.sin(z[:, :1]) * z[:, 1:2]


def save(folder, step, model, opt, norm, rank):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"count": norm.count, "mean": norm.mean, "var": norm.var}, folder / f"norm-{rank:02d}.pt")
    if rank == 0:
        torch.save({"step": step, "policy": model.state_dict(), "opt": opt.state_dict()}, folder / "policy.pt")
    dist.barrier()


def load(folder, model, opt, norm, rank):
    shared = torch.load(folder / "policy.pt")
    model.load_state_dict(shared["policy"])
    opt.load_state_dict(shared["opt"])
    for k, v in torch.load(folder / f"norm-{rank:02d}.pt").items():
        setattr(norm, k, v)
    return shared["step"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--folder", type=Path, default=Path("runs/workers"))
    ap.add_argument("--continue", dest="cont", action="store_true")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    norm, env, start = RunningNorm(5), Env(rank), 0
    if a.cont:
        start = load(a.folder, net, opt, norm, rank)
    ddp = DDP(net)
    for step in range(start, a.steps):
        obs, target = env.sample(step, rank)
        norm.update(obs)
        loss = nn.functional.mse_loss(ddp(norm(obs)), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    save(a.folder, a.steps, net, opt, norm, rank)
    print(f"rank {rank} steps {start}-{a.steps} loss {loss.item():.4f} mean0 {norm.mean[0]:.3f} "
          f"w {sum(p.sum().item() for p in net.parameters()):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
