"""Small mixture-of-experts LM with hash routing, one expert per rank (expert parallel)."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data import MixtureStream
from moe import HashMoE

log = logging.getLogger("moe")


class Block(nn.Module):
    def __init__(self, dim, n_domains):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.moe = HashMoE(dim, n_domains)

    def forward(self, x, domain):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.moe(self.norm2(x), domain)


class MoELM(nn.Module):
    def __init__(self, vocab, dim, depth, n_domains):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, n_domains) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, domain):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, domain)
        return self.head(x)

    def dense_parameters(self):
        return [p for n, p in self.named_parameters() if ".expert." not in n]


def sync_dense_grads(params, world):
    flat = torch.cat([p.grad.flatten() if p.grad is not None else p.new_zeros(p.numel()) for p in params])
    dist.all_reduce(flat)
    flat /= world
    off = 0
    for p in params:
        n = p.numel()
        p.grad = flat[off:off + n].view_as(p).clone()
        off += n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--depth", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=240)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--seq-len", type=int, default=48)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[r{rank}] %(message)s")

    torch.manual_seed(7)
    model = MoELM(args.vocab, args.dim, args.depth, n_domains=world)
    # experts start different on each rank
    torch.manual_seed(100 + rank)
    for b in model.blocks:
        b.moe.reset_expert()
    dense = model.dense_parameters()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = MixtureStream(world, args.vocab, args.batch_size, args.seq_len, seed=rank)

    for step in range(1, args.steps + 1):
        ids, domain = stream.next_batch(step / args.steps)
        logits = model(ids[:, :-1], domain[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        sync_dense_grads(dense, world)
        opt.step()
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %d loss %.4f", step, mean.item() / world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
