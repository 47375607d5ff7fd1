"""Self-training: label what the network is sure of, add it, train again.

Round 0 uses the labelled rows only.
"""
import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 5


def river_sounds(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(CLASSES, 2, 24, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, CLASSES, (n,), generator=g)
    sub = torch.randint(0, 2, (n,), generator=g)
    return proto[y, sub] + 0.9 * torch.randn(n, 24, generator=g), y


def make_net():
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, CLASSES))


def write_labels(folder, rnd, rank, index, label, conf):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"round{rnd}.{rank:03d}.npz")
    scratch = f"{path}.{os.getpid()}"
    with open(scratch, "wb") as f:
        np.savez(f, index=index, label=label, conf=conf)
    os.replace(scratch, path)


def read_labels(folder, rnd, world):
    parts = []
    for rank in range(world):
        with np.load(os.path.join(folder, f"round{rnd}.{rank:03d}.npz")) as z:
            parts.append((z["index"], z["label"], z["conf"]))
    return tuple(np.concatenate(c) for c in zip(*parts))


@torch.no_grad()
def annotate(net, pool, rank, world, threshold):
    """Each process looks at its own stripe of the pool."""
    net.eval()
    stripe = torch.arange(rank, len(pool), world)
    probs = torch.cat([net(pool[c]).softmax(1) for c in stripe.split(256)])
    conf, label = probs.max(1)
    sure = conf > threshold
    net.train()
    return stripe[sure].numpy(), label[sure].numpy(), conf[sure].numpy()


def train_round(rnd, dataset, args, rank):
    torch.manual_seed(args.seed + rnd)
    net = DDP(make_net())
    torch.manual_seed(args.seed + 100 * rnd + rank)
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, args.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(net(x), y, label_smoothing=0.02)
            opt.zero_grad()
            loss.backward()
            opt.step()
    return net.module


@torch.no_grad()
def accuracy(net, x, y, rank, world):
    net.eval()
    t = torch.tensor([(net(x[rank::world]).argmax(1) == y[rank::world]).sum(), len(y[rank::world])],
                     dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--threshold", type=float, default=0.7)
    ap.add_argument("--seed", type=int, default=14)
    ap.add_argument("--labels", default="labels")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    known = TensorDataset(*river_sounds(160, 1))
    pool, _ = river_sounds(1600, 2)
    test_x, test_y = river_sounds(600, 3)

    dataset = known
    for rnd in range(args.rounds):
        net = train_round(rnd, dataset, args, rank)
        acc = accuracy(net, test_x, test_y, rank, world)
        if rank == 0:
            print(f"round {rnd}: {len(dataset)} rows, test accuracy {acc:.3f}", flush=True)
        if rnd + 1 == args.rounds:
            break
        write_labels(args.labels, rnd, rank, *annotate(net, pool, rank, world, args.threshold))
        dist.barrier()
        index, label, conf = read_labels(args.labels, rnd, world)
        order = np.argsort(index)
        extra = TensorDataset(pool[torch.from_numpy(index[order])], torch.from_numpy(label[order]))
        dataset = ConcatDataset([known, extra])

    if rank == 0:
        torch.save(net.state_dict(), os.path.join(args.labels, "net.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
