import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import ShardWiseSampler, WaveDataset, write_shards


class WaveNet1d(nn.Module):
    def __init__(self, ch=48, classes=6):
        super().__init__()
        self.stem = nn.Conv1d(1, ch, 16, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(ch, ch, 7, 2, 3), nn.GroupNorm(8, ch), nn.GELU(),
                                                  nn.Conv1d(ch, ch, 3, 1, 1)) for _ in range(4))
        self.head = nn.Linear(ch, classes)

    def forward(self, x):
        x = self.stem(x.unsqueeze(1))
        for block in self.blocks:
            x = F.gelu(block(x))
        return self.head(x.mean(2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--shards", type=int, default=16)
    ap.add_argument("--rows", type=int, default=96)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    holder = [tempfile.mkdtemp(prefix="zephyr_") if rank == 0 else None]
    if rank == 0:
        write_shards(holder[0], args.shards, args.rows)
    dist.broadcast_object_list(holder, src=0)

    torch.manual_seed(37)
    model = DDP(WaveNet1d())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = WaveDataset(holder[0], args.shards, args.rows)
    sampler = ShardWiseSampler(args.shards, args.rows, rank, world, seed=3)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=1, persistent_workers=True,
                        multiprocessing_context="spawn", drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        hits = torch.zeros(2)
        for wave, label in loader:
            logits = model(wave)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            hits += torch.tensor([(logits.argmax(1) == label).sum().item(), len(label)])
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} acc {hits[0] / hits[1]:.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(holder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
