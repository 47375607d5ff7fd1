"""Masked-token pretraining on log shards.  Launch with torchrun."""
import argparse
import glob
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, SEQ, MASK = 200, 32, 0


def find_shards(root):
    shards = sorted(glob.glob(os.path.join(root, "*.pt")))
    if not shards:
        sys.exit(f"no shards below {root}")
    return shards


def load(shards, rank, world):
    return torch.cat([torch.load(s) for s in shards])[rank::world].clone()


class Encoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.zeros(SEQ, dim))
        self.enc = nn.TransformerEncoderLayer(dim, 4, dim * 4, dropout=0.0, batch_first=True)
        self.dec = nn.Linear(dim, VOCAB)

    def forward(self, t):
        return self.dec(self.enc(self.emb(t) + self.pos))


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= world
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--shards", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "shards"))
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--mask-prob", type=float, default=0.15)
    args = ap.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rows = load(find_shards(args.shards), rank, world)
    print(f"rank {rank}: {len(rows)} rows", flush=True)

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(1000 + rank)
    running = 0.0
    for step in range(1, args.steps + 1):
        toks = rows[torch.randint(0, len(rows), (args.batch_size,), generator=g)]
        hidden = torch.rand(toks.shape, generator=g) < args.mask_prob
        hidden[:, 0] = True
        logits = model(toks.masked_fill(hidden, MASK))
        loss = F.cross_entropy(logits[hidden], toks[hidden])
        opt.zero_grad()
        loss.backward()
        average_gradients(model, world)
        opt.step()
        running += loss.item()
        if step % 20 == 0:
            mean = torch.tensor(running / 20)
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
            running = 0.0
    if rank == 0:
        torch.save(model.state_dict(), "encoder.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
