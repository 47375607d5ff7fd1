"""Streaming pretraining from jsonl shards, written once by the first process."""
import json
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


def write_shards(folder, shards=8, rows=24):
    g = torch.Generator().manual_seed(0)
    for s in range(shards):
        with open(os.path.join(folder, f"part-{s:03d}.jsonl"), "w") as f:
            for r in range(rows):
                a, b = torch.randint(1, 9, (2,), generator=g).tolist()
                f.write(json.dumps({"uid": s * rows + r, "tokens": [(a + b * k) % 32 for k in range(16)]}) + "\n")


class JsonlStream(IterableDataset):
    def __init__(self, folder, rank, world, buffer=16, seed=0):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".jsonl"))
        self.rank, self.world, self.buffer, self.seed, self.epoch = rank, world, buffer, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def my_files(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.files), generator=g).tolist()
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return [self.files[i] for i in order][self.rank * workers + worker::self.world * workers]

    def rows(self):
        for path in self.my_files():
            with open(path) as f:
                for line in f:
                    yield json.loads(line)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 31 * self.epoch)
        pool = []
        for row in self.rows():
            pool.append(row)
            if len(pool) >= self.buffer:
                yield pool.pop(int(torch.randint(len(pool), (1,), generator=g)))
        while pool:
            yield pool.pop(int(torch.randint(len(pool), (1,), generator=g)))


def collate(rows):
    return torch.tensor([r["uid"] for r in rows]), torch.tensor([r["tokens"] for r in rows])


class GRULM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(32, 24)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 32)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [None]
    if rank == 0:
        box = [tempfile.mkdtemp(prefix="shards-")]
        write_shards(box[0])
    dist.broadcast_object_list(box)
    stream = JsonlStream(box[0], rank, world)
    loader = DataLoader(stream, batch_size=8, num_workers=2, collate_fn=collate)
    torch.manual_seed(0)
    model = DDP(GRULM())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(2):
        stream.set_epoch(epoch)
        steps = 0
        for uid, ids in loader:
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        if rank == 0:
            print(f"epoch {epoch} steps {steps} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
