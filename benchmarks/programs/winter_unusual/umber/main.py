"""Language model on length-bucketed streams; batches differ in size from rank to rank."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import Shards, TokenBudgetStream

log = logging.getLogger("umber")


class GatedConvLM(nn.Module):
    def __init__(self, vocab, dim, depth=3, k=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.k = k
        self.convs = nn.ModuleList(nn.Conv1d(dim, 2 * dim, k) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.emb(x)
        for conv, norm in zip(self.convs, self.norms):
            z = F.pad(norm(h).transpose(1, 2), (self.k - 1, 0))
            h = h + F.glu(conv(z), dim=1).transpose(1, 2)
        return self.head(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--budget", type=int, default=640)
    ap.add_argument("--vocab", type=int, default=80)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    stream = TokenBudgetStream(Shards(32, 160, args.vocab, seed=12), args.budget, rank, world)
    batches = iter(DataLoader(stream, batch_size=None))
    torch.manual_seed(4)
    model = DDP(GatedConvLM(args.vocab, args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    seen = torch.zeros(2)

    for step in range(args.steps):
        group = [next(batches) for _ in range(args.accum)]
        n_tokens = sum((y >= 0).sum() for _, y in group).float()
        dist.all_reduce(n_tokens)
        opt.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(group):
            model.require_backward_grad_sync = i + 1 == args.accum
            nll = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")
            # DDP divides by the world size, the objective is the mean over all tokens of the global step
            (nll * world / n_tokens).backward()
            seen[0] += nll.detach()
        seen[1] += sum((y >= 0).sum() for _, y in group)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (step + 1) % 20 == 0:
            dist.all_reduce(seen)
            log.info("step %d nll per token %.4f over %d tokens", step + 1, (seen[0] / seen[1]).item(), int(seen[1]))
            seen.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
