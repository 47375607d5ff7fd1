"""Character model continued from a saved snapshot (second stage of a two-stage run)."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, CONTEXT = 40, 32, 12


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.tie()

    def tie(self):
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(self.norm(h))


class Text:
    """Arithmetic progressions modulo the vocabulary: easy to learn, endless."""

    def __init__(self, seed, rank):
        self.g = torch.Generator().manual_seed(seed * 131 + rank)

    def batch(self, n):
        start = torch.randint(0, VOCAB, (n, 1), generator=self.g)
        stride = torch.randint(1, 4, (n, 1), generator=self.g)
        seq = (start + stride * torch.arange(CONTEXT + 1)) % VOCAB
        return seq[:, :-1], seq[:, 1:]


def run_stage(model, text, steps, lr, tag):
    ddp = DDP(model)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=lr)
    for step in range(steps):
        x, y = text.batch(16)
        loss = F.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    if dist.get_rank() == 0:
        print(f"{tag}: loss {loss.item():.4f}", flush=True)
    return ddp


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, nargs=2, default=(20, 40))
    p.add_argument("--lr", type=float, default=5e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    folder = [tempfile.mkdtemp(prefix="sorrel_") if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path = os.path.join(folder[0], "stage1.pt")

    first = CharModel()
    run_stage(first, Text(1, rank), args.steps[0], args.lr, "stage 1")
    if rank == 0:
        torch.save({k: v.detach().clone() for k, v in first.state_dict().items()}, path)
    dist.barrier()
    del first

    model = CharModel()
    state = torch.load(path, mmap=True, weights_only=True)
    model.load_state_dict(state, assign=True)
    run_stage(model, Text(2, rank), args.steps[1], args.lr / 2, "stage 2")
    if rank == 0:
        torch.save(model.state_dict(), os.path.join(folder[0], "stage2.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
