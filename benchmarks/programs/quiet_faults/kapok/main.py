"""Next-token training on a mixture of three sources, read by workers, with accumulated gradients."""
import argparse
import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import Mixture, write_sources

ROWS = {"prose": 512, "code": 192, "tables": 64}
WIDTH, VOCAB = 20, 40


class Decoder(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(self.norm(h))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="mixture_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    if rank == 0:
        write_sources(box[0], ROWS, WIDTH, VOCAB)
    dist.barrier()
    stream = Mixture(box[0], ROWS, WIDTH, rank, world, seed=29)
    loader = DataLoader(stream, batch_size=args.batch, num_workers=args.workers)
    per_epoch = sum(ROWS.values()) // (world * args.batch)
    updates = args.epochs * per_epoch // args.accum
    torch.manual_seed(1)
    net = Decoder()
    model = DDP(net)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=updates)
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        sums = torch.zeros(2)
        for i, rows in enumerate(loader):
            ready = (i + 1) % args.accum == 0
            with contextlib.nullcontext() if ready else model.no_sync():
                logits = model(rows[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                (loss / args.accum).backward()
            sums += torch.tensor([loss.item() * len(rows), float(len(rows))])
            if ready:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
        dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch} rows {int(sums[1])} loss {sums[0] / sums[1]:.4f}", flush=True)
    if rank == 0:
        shutil.rmtree(box[0], ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
