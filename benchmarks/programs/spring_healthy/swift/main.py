import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from parallel import RandomStates, ShardedAttention, ShardedMLP

SPLIT = ("wq", "wk", "wv", "wo", "w1", "b1", "w2")


class Layer(nn.Module):
    def __init__(self, dim, heads, p, states):
        super().__init__()
        self.p = p
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att, self.mlp = ShardedAttention(dim, heads, p, states), ShardedMLP(dim, 4 * dim, p, states)

    def forward(self, x):
        x = x + F.dropout(self.att(self.n1(x)), self.p, self.training)
        return x + F.dropout(self.mlp(self.n2(x)), self.p, self.training)


class Classifier(nn.Module):
    def __init__(self, vocab, length, dim, depth, p, states, classes):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, dim), nn.Parameter(torch.randn(length, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, 4, p, states) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        h = self.emb(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.out(self.norm(h).mean(1))


def sequences(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 40, (n, 32), generator=g)
    return x, ((x < 10).sum(1) - (x > 29).sum(1)).clamp(-4, 4) + 4


def global_norm(model):
    split = [p.grad.square().sum() for n, p in model.named_parameters() if n.rsplit(".", 1)[-1] in SPLIT]
    whole = [p.grad.square().sum() for n, p in model.named_parameters() if n.rsplit(".", 1)[-1] not in SPLIT]
    part = torch.stack(split).sum()
    dist.all_reduce(part)
    return (part + torch.stack(whole).sum()).sqrt()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    states = RandomStates(seed=42)
    model = Classifier(40, 32, 64, 2, args.dropout, states, 9)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # one model over all ranks: they all take the same rows in the same order
    loader = DataLoader(TensorDataset(*sequences(2560, 1)), args.batch, shuffle=True, generator=torch.Generator().manual_seed(8))
    for epoch in range(args.epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            norm = global_norm(model)
            for p in model.parameters():
                p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            opt.step()
        model.eval()
        xt, yt = sequences(1000, 2)
        with torch.no_grad():
            acc = (model(xt).argmax(1) == yt).float().mean()
        logging.info("epoch %d loss %.6f norm %.5f accuracy %.4f", epoch, loss.item(), norm, acc)
    whole = torch.cat([p.detach().reshape(-1) for n, p in model.named_parameters() if n.rsplit(".", 1)[-1] not in SPLIT])
    every = [torch.empty_like(whole) for _ in range(world)]
    dist.all_gather(every, whole)
    logging.info("replicated weights apart by %.3g", max((e - whole).abs().max().item() for e in every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
