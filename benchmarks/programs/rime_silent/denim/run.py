"""Topic classifier over a directory of jsonl parts."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from streaming import JsonlStream, write_shards

HERE = os.path.dirname(os.path.abspath(__file__))


class Classifier(nn.Module):
    def __init__(self, vocab=160, dim=64, classes=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.fc = nn.Linear(dim, classes)

    def forward(self, t):
        h = torch.relu(self.conv(self.emb(t).transpose(1, 2)))
        return self.fc(h.amax(-1))


def loader_for(folder, args, rank, world):
    ds = JsonlStream(folder, rank, world, seed=args.seed)
    return ds, DataLoader(ds, batch_size=args.batch_size, num_workers=args.workers, drop_last=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default=os.path.join(HERE, "corpus"))
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--parts", type=int, default=8)
    ap.add_argument("--rows", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_shards(args.data, args.parts, args.rows, 160, 12, args.seed)
    dist.barrier()

    torch.manual_seed(args.seed)
    model = DDP(Classifier())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    ce = nn.CrossEntropyLoss()
    stream, loader = loader_for(args.data, args, rank, world)

    step = 0
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        t0, seen, loss_sum = time.time(), 0, 0.0
        for tokens, topic in loader:
            loss = ce(model(tokens), topic)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(topic)
            loss_sum += loss.item() * len(topic)
            step += 1
        stats = torch.tensor([loss_sum, seen])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {stats[0] / stats[1]:.4f} "
                  f"{stats[1] / (time.time() - t0):.0f} rows/s", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(HERE, "classifier.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
