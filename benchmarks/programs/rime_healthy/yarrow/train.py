"""Compiled model, bf16 autocast, profiler windows on the first worker, averaged checkpoints at the end."""
import argparse
import glob
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Mixer(nn.Module):
    def __init__(self, tokens=24, d=32, classes=5):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(tokens, 48), nn.GELU(), nn.Linear(48, tokens))
        self.ch = nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Linear(96, d))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        h = self.inp(x)
        h = h + self.tok(self.n1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.ch(self.n2(h))
        return self.out(h.mean(1))


def sets(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 5
    t = torch.arange(24).float()
    ch = torch.arange(4).float()
    s = torch.sin((0.3 + 0.25 * y[:, None, None]) * t[None, :, None] + ch + 6.283 * torch.rand(n, 1, 1, generator=g))
    return TensorDataset(s + 1.0 * torch.randn(n, 24, 4, generator=g), y)


@torch.no_grad()
def evaluate(net, ds):
    net.eval()
    r, w = dist.get_rank(), dist.get_world_size()
    hit = (net(ds.tensors[0][r::w]).argmax(1) == ds.tensors[1][r::w]).sum().float()
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(ds)


def average_checkpoints(paths):
    states = [torch.load(p, weights_only=True) for p in paths]
    return {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--backend", default="aot_eager")
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(0)
    net = Mixer()
    ddp = DDP(net)
    fast = torch.compile(ddp, backend=args.backend, dynamic=False)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    train, val = sets(5120, 1), sets(1000, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    prof = None
    if rank == 0:
        prof = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=10, warmup=2, active=3, repeat=1),
                       on_trace_ready=lambda p: p.export_chrome_trace(os.path.join(args.out, f"trace{p.step_num}.json")))
        prof.start()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = fast(x)
            loss = F.cross_entropy(logits.float(), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if prof is not None:
                prof.step()
        acc = evaluate(net, val)
        if rank == 0:
            torch.save(net.state_dict(), os.path.join(args.out, f"epoch{epoch:02d}.pt"))
            print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
    if prof is not None:
        prof.stop()
    dist.barrier()
    net.load_state_dict(average_checkpoints(sorted(glob.glob(os.path.join(args.out, "epoch*.pt")))[-3:]))
    acc = evaluate(net, val)
    if rank == 0:
        print(f"mean of the last three: acc {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
