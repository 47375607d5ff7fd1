"""Support-ticket triage: a bag-of-words classifier trained from record shards."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import QUEUES, VOCAB, ShardStream, write_shards


class Triage(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, dim, mode="mean")
        self.head = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, QUEUES))

    def forward(self, x):
        return self.head(self.words(x))


def shared_dir(rank):
    box = [tempfile.mkdtemp(prefix="tickets-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@torch.no_grad()
def accuracy(net, loader):
    net.eval()
    tally = torch.zeros(2, dtype=torch.float64)
    for x, y in loader:
        tally += torch.tensor([(net(x).argmax(-1) == y).sum().item(), y.numel()], dtype=torch.float64)
    dist.all_reduce(tally)
    net.train()
    return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=11)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    root = shared_dir(rank)
    if rank == 0:
        write_shards(os.path.join(root, "train"), 16, 64, args.seed)
        write_shards(os.path.join(root, "held"), 4, 64, args.seed + 500)
    dist.barrier()

    torch.manual_seed(args.seed)
    model = DDP(Triage())
    torch.manual_seed(args.seed * 1000 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    stream = ShardStream(os.path.join(root, "train"), args.seed, rank, world)
    held = ShardStream(os.path.join(root, "held"), args.seed, rank, world)
    loader = DataLoader(stream, batch_size=args.batch, drop_last=True)
    held_loader = DataLoader(held, batch_size=args.batch)

    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        seen = torch.zeros(2, dtype=torch.float64)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            seen += torch.tensor([loss.item() * y.numel(), y.numel()], dtype=torch.float64)
        dist.all_reduce(seen)
        acc = accuracy(model.module, held_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {seen[0] / seen[1]:.4f} held-out acc {acc:.3f}", flush=True)
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, os.path.join(root, "last.pt"))

    dist.barrier()
    if rank == 0:
        shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
