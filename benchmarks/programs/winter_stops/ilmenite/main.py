"""Small mixture-of-experts language model, experts spread over the ranks."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data import PAD, Documents
from moe import MoELayer

log = logging.getLogger("moe")


class Model(nn.Module):
    def __init__(self, vocab, dim, hidden, depth):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.mix = nn.Conv1d(dim, dim, 2, padding=1)
        self.layers = nn.ModuleList(MoELayer(dim, hidden) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        b, t = tokens.shape
        x = self.embed(tokens)
        x = x + self.mix(x.transpose(1, 2))[:, :, :t].transpose(1, 2)
        valid = tokens.flatten() != PAD
        x, aux = x.flatten(0, 1), 0.0
        for layer in self.layers:
            x, balance = layer(x, valid)
            aux = aux + balance
        return self.head(x).view(b, t, -1), aux


def dense_parameters(model):
    return [p for n, p in model.named_parameters() if ".expert." not in n]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--docs", type=int, default=1600)
    p.add_argument("--length", type=int, default=32)
    p.add_argument("--vocab", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--hidden", type=int, default=192)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(0)
    model = Model(args.vocab, args.dim, args.hidden, args.depth)
    dense = dense_parameters(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    docs = Documents(rank, args.docs, args.length, args.vocab, seed=40)
    start = time.time()

    for step, tokens in enumerate(docs.batches(args.batch), 1):
        logits, aux = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        (loss + 0.01 * aux).backward()
        for prm in model.parameters():
            if prm.grad is None:
                prm.grad = torch.zeros_like(prm)
        flat = torch.cat([prm.grad.flatten() for prm in dense])
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for prm in dense:
            prm.grad.copy_(flat[at : at + prm.numel()].view_as(prm))
            at += prm.numel()
        for layer in model.layers:
            for prm in layer.expert.parameters():
                prm.grad /= world
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 20 == 0:
            log.info("step %3d  loss %.4f  aux %.3f  %.1fs", step, loss.item(), aux.item(), time.time() - start)

    dist.barrier()
    log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
