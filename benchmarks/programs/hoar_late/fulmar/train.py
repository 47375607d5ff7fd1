"""Feature extraction in three unequal stages, then a probe is trained on the last rank."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stages import Pipe


def reader(n, bs, seed):
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))
    for (xb,) in DataLoader(TensorDataset(x), batch_size=bs):
        keep = xb[xb[:, 0] > -0.5]
        if len(keep):
            yield keep


def run_stage(rank, pipe, nets, source):
    count, feats = 0, []
    items = source if rank == 0 else pipe
    with torch.no_grad():
        for t in items:
            out = nets(t)
            if rank == 2:
                time.sleep(0.03)
                feats.append(out)
            else:
                pipe.push(out)
            count += 1
    pipe.close()
    return count, feats


def train_probe(feats):
    x = torch.cat(feats)
    y = x.mean(1, keepdim=True)
    probe = nn.Linear(x.shape[1], 1)
    opt = torch.optim.Adam(probe.parameters(), lr=1e-2)
    for _ in range(100):
        loss = nn.functional.mse_loss(probe(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sets", type=int, nargs="+", default=[500, 130, 777])
    ap.add_argument("--bs", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    nets = [
        nn.Linear(16, 32),
        nn.Sequential(nn.ReLU(), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64)),
        nn.Sequential(nn.Tanh(), nn.Linear(64, 10)),
    ][rank]
    for i, n in enumerate(args.sets):
        count, feats = run_stage(rank, Pipe(rank, world), nets, reader(n, args.bs, i))
        print(f"[{rank}] set {i}: {count} batches", flush=True)
        if rank == 2:
            print(f"[{rank}] set {i}: probe loss {train_probe(feats):.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
