"""Bag-of-words topic tagging with summed losses; gradients are normalised once per update."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from corpus import Corpus, batches


class Tagger(nn.Module):
    def __init__(self, vocab, topics, width=24):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, topics))

    def forward(self, ids):
        return self.mlp(self.table(ids))


def reduce_update(params, weight):
    """Sum of gradients over workers, divided by the weight of all workers."""
    flat = torch.cat([p.grad.flatten() for p in params] + [weight.view(1)])
    dist.all_reduce(flat)
    denom = flat[-1].clamp(min=1.0)
    offset = 0
    for p in params:
        n = p.numel()
        p.grad.copy_((flat[offset:offset + n] / denom).view_as(p))
        offset += n
    return denom


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=40)
    ap.add_argument("--tokens-per-update", type=int, default=600)
    ap.add_argument("--lr", type=float, default=0.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    corpus = Corpus()
    model = Tagger(corpus.vocab, corpus.topics)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9)
    stream = batches(corpus, rank, world)
    for update in range(args.updates):
        opt.zero_grad()
        tokens, loss_sum = torch.zeros(()), torch.zeros(())
        while tokens < args.tokens_per_update:
            ids, topic, keep = next(stream)
            logits = model(ids)
            per_token = F.cross_entropy(logits.flatten(0, 1), topic.flatten(), reduction="none")
            loss = (per_token * keep.flatten()).sum()
            loss.backward()
            tokens += keep.sum()
            loss_sum += loss.detach()
        total = reduce_update(params, tokens)
        opt.step()
        if update % 8 == 0:
            dist.reduce(loss_sum, 0)
            if rank == 0:
                print(f"update {update} loss/token {(loss_sum / total).item():.4f} tokens {int(total)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
