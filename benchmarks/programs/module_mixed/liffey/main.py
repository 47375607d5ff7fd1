import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from staging import publish, shard_files, stage

EPOCHS, BATCH = 3, 16


class ShardDataset(Dataset):
    def __init__(self, path):
        self.blob = torch.load(path)

    def __len__(self):
        return len(self.blob["key"])

    def __getitem__(self, i):
        return self.blob["x"][i], self.blob["y"][i], self.blob["key"][i]


def bucket():
    box = [os.path.join(tempfile.mkdtemp(prefix="bucket_"), "v1") if dist.get_rank() == 0 else None]
    if box[0]:
        publish(box[0])
    dist.broadcast_object_list(box)
    return box[0]


def build_loader(rank, world):
    files = shard_files(stage(bucket(), node=rank))
    mine = files[rank::world]
    ds = ConcatDataset([ShardDataset(f) for f in mine])
    g = torch.Generator().manual_seed(7 + rank)
    return DataLoader(ds, batch_size=BATCH, shuffle=True, drop_last=True, generator=g)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loader = build_loader(rank, world)
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(9, 64), nn.GELU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        seen = 0
        for x, y, key in loader:
            loss = (model(x) - y).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(key)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} samples {seen}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
