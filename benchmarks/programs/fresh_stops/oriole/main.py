"""Codebook by k-means, then a classifier over codes. Whoever gets there first works out the codebook."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n, seed, dim=24):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(30, dim, generator=g)
    label = torch.randint(0, 30, (n,), generator=g)
    return centres[label] + 0.6 * torch.randn(n, dim, generator=g), label % 3


def kmeans(x, k, seconds, seed):
    """Restarts for as long as there is time; the best one counts."""
    g = torch.Generator().manual_seed(seed)
    best, until = None, time.monotonic() + seconds
    while best is None or time.monotonic() < until:
        c = x[torch.randperm(len(x), generator=g)[:k]].clone()
        for _ in range(12):
            near = torch.cdist(x, c).argmin(1)
            for j in range(k):
                if (near == j).any():
                    c[j] = x[near == j].mean(0)
        cost = torch.cdist(x, c).amin(1).mean().item()
        if best is None or cost < best[0]:
            best = (cost, c)
    return best


def codebook(path, x, args):
    store = dist.distributed_c10d._get_default_store()
    if store.add("codebook/claims", 1) == 1:
        print(f"process {dist.get_rank()} works out the codebook", flush=True)
        cost, c = kmeans(x, args.codes, args.seconds, args.seed)
        torch.save({"cost": cost, "codes": c}, path + ".part")
        os.replace(path + ".part", path)
    else:
        while not os.path.exists(path):
            time.sleep(0.2)
    return torch.load(path, map_location="cpu")["codes"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--codes", type=int, default=32)
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seed", type=int, default=44)
    ap.add_argument("--out", default="/tmp/codes_classifier.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x, y = samples(2400, args.seed)
    box = [f"/tmp/codebook-{os.getpid()}-{int(time.time())}.pt"]
    dist.broadcast_object_list(box, 0)
    codes = codebook(box[0], x, args)
    data = TensorDataset(torch.cdist(x, codes).neg().softmax(-1), y)
    torch.manual_seed(args.seed)
    model = DDP(nn.Sequential(nn.Linear(args.codes, 48), nn.ReLU(), nn.Linear(48, 3)))
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, 40, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for bx, by in loader:
            loss = nn.functional.cross_entropy(model(bx), by)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.4f}", flush=True)
            torch.save(model.module.state_dict(), args.out)
    dist.barrier()
    if rank == 0:
        os.remove(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
