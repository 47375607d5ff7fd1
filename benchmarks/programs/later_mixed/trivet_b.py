"""Language-model style training from record files with an iterable dataset and workers."""
import argparse
import os
import shutil
import struct
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WIDTH = 10


def write_records(path, n, vocab=32):
    g = torch.Generator().manual_seed(17)
    with open(path, "wb") as f:
        for _ in range(n):
            start, stride = torch.randint(0, vocab, (2,), generator=g).tolist()
            f.write(struct.pack(f"{WIDTH}i", *[(start + stride * k) % vocab for k in range(WIDTH)]))


class Records(IterableDataset):
    """Fixed-width records; every consumer reads its share of the file."""

    def __init__(self, path, rank, world):
        self.path, self.rank, self.world = path, rank, world
        self.size = struct.calcsize(f"{WIDTH}i")
        self.total = os.path.getsize(path) // self.size

    def share(self):
        info = get_worker_info()
        return range(self.rank, self.total, self.world)

    def __iter__(self):
        with open(self.path, "rb") as f:
            for i in self.share():
                f.seek(i * self.size)
                yield torch.tensor(struct.unpack(f"{WIDTH}i", f.read(self.size)))


class NextToken(nn.Module):
    def __init__(self, vocab=32, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--records", type=int, default=768)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="records_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "train.bin")
    if rank == 0:
        write_records(path, args.records)
    dist.barrier()

    torch.manual_seed(0)
    ddp = DDP(NextToken())
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    loader = DataLoader(Records(path, rank, world), batch_size=args.batch, num_workers=args.workers)
    step = 0
    for epoch in range(args.epochs):
        for ids in loader:
            logits = ddp(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
