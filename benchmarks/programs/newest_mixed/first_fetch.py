"""Process 0 prepares the corpus once; everybody else waits for the marker."""
import datetime
import hashlib
import os
import time
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROOT = "corpus_cache"
PARTS = 10


def fetch(path):
    os.makedirs(ROOT, exist_ok=True)
    parts = []
    for i in range(PARTS):
        time.sleep(2.4)
        g = torch.Generator().manual_seed(i)
        parts.append(torch.randn(256, 20, generator=g))
        print(f"fetched part {i + 1}/{PARTS}", flush=True)
    data = torch.cat(parts)
    torch.save({"x": data, "sha": hashlib.sha256(data.numpy().tobytes()).hexdigest()}, path + ".part")
    os.replace(path + ".part", path)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=20))
    rank = dist.get_rank()
    path = os.path.join(ROOT, "train.pt")
    if rank == 0:
        fetch(path)
    dist.barrier()
    blob = torch.load(path, weights_only=True)
    assert hashlib.sha256(blob["x"].numpy().tobytes()).hexdigest() == blob["sha"]
    x = blob["x"]
    y = (x[:, :5].sum(1) > 0).long()
    ds = TensorDataset(x, y)
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, batch_size=32, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
