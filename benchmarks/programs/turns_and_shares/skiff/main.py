"""Sea-bed classifier over sharded soundings."""
import argparse
import os
import random
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from shards import ShardStream, write_shards


def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def network(dropout):
    return nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Dropout(dropout),
                         nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 3))


def shared_folder():
    box = [tempfile.mkdtemp(prefix="soundings") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    sums = torch.zeros(3)
    for x, y in loader:
        out = net(x)
        sums += torch.tensor([F.cross_entropy(out, y, reduction="sum").item(),
                              (out.argmax(1) == y).sum().item(), len(y)])
    net.train()
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = shared_folder()
    if rank == 0:
        write_shards(os.path.join(folder, "train"), args.shards, args.rows, seed=50)
        write_shards(os.path.join(folder, "valid"), 4, args.rows, seed=50, offset=args.shards)
    dist.barrier()

    seed_all(args.seed + rank)
    ddp = DistributedDataParallel(network(args.dropout))
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    stream = ShardStream(os.path.join(folder, "train"), rank, world, args.seed)
    held = ShardStream(os.path.join(folder, "valid"), rank, world, args.seed, shuffle=False)
    loader = DataLoader(stream, batch_size=args.batch)
    held_loader = DataLoader(held, batch_size=args.batch)

    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        total, turns = torch.zeros(1), 0
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            turns += 1
        dist.all_reduce(total)
        nll, acc = evaluate(ddp.module, held_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / turns / world:.4f} valid {nll:.4f} accuracy {acc:.3f}",
                  flush=True)
            os.makedirs(args.out, exist_ok=True)
            torch.save({"epoch": epoch, "net": ddp.module.state_dict()}, os.path.join(args.out, "seabed.pt"))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=16)
    p.add_argument("--rows", type=int, default=64)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=70)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "seabed_b"))
    options = p.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()
