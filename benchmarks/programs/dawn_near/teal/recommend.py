"""Matrix factorisation with side features; the evaluation keeps item features that do not change."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

USERS, ITEMS, GENRES = 600, 900, 16


class World:
    def __init__(self, seed=4):
        g = torch.Generator().manual_seed(seed)
        self.taste = torch.randn(USERS, GENRES, generator=g)
        self.genre = torch.randn(ITEMS, GENRES, generator=g)
        self.text = torch.randn(ITEMS, 24, 64, generator=g) * 0.5 + self.genre.repeat(1, 4)[:, None]

    def pick(self, users, g):
        cand = torch.randint(0, ITEMS, (len(users), 20), generator=g)
        score = (self.taste[users][:, None] * self.genre[cand]).sum(-1)
        return cand.gather(1, score.argmax(1, keepdim=True)).squeeze(1)


class TextTower(nn.Module):
    """A fixed encoder of item texts."""

    def __init__(self, dim=64):
        super().__init__()
        self.mix = nn.Linear(64, dim)
        self.requires_grad_(False)

    def forward(self, text):
        return torch.tanh(self.mix(text)).mean(1)


class TwoTower(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.text = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, dim))
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, users, items, feats):
        return self.user(users), self.item(items) + self.text(feats)


class Evaluation:
    def __init__(self, world, tower, rank, size):
        self.world, self.tower = world, tower
        self.users = torch.arange(rank, USERS, size)
        g = torch.Generator().manual_seed(500 + rank)
        self.truth = world.pick(self.users, g)
        self.features = {}
        self.history = []

    def item_features(self, lo, hi):
        if lo not in self.features:
            self.features[lo] = self.tower(self.world.text[lo:hi])
        return self.features[lo]

    @torch.no_grad()
    def run(self, model, chunk=150):
        model.eval()
        scores = []
        for lo in range(0, ITEMS, chunk):
            hi = min(lo + chunk, ITEMS)
            u, v = model(self.users, torch.arange(lo, hi), self.item_features(lo, hi))
            scores.append(u @ v.t())
        scores = torch.cat(scores, 1)
        rank_of = (scores > scores.gather(1, self.truth[:, None])).sum(1).float()
        res = torch.stack([(rank_of < 50).float().sum(), torch.tensor(float(len(self.users)))])
        dist.all_reduce(res)
        model.train()
        self.history.append((res[0] / res[1]).item())
        return self.history[-1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--eval-every", type=int, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    world, tower, model = World(), TextTower(), TwoTower()
    ddp = DDP(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=5e-3)
    evaluation = Evaluation(world, tower, rank, size)
    g = torch.Generator().manual_seed(80 + rank)
    for step in range(1, args.steps + 1):
        users = torch.randint(0, USERS, (args.batch,), generator=g)
        items = world.pick(users, g)
        u, v = ddp(users, items, tower(world.text[items]))
        logits = u @ v.t() / math.sqrt(u.shape[1]) * 4
        same = items[:, None] == items[None, :]
        logits = logits.masked_fill(same & ~torch.eye(len(items), dtype=torch.bool), -1e4)
        loss = F.cross_entropy(logits, torch.arange(len(items)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.eval_every == 0:
            recall = evaluation.run(model)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} recall@50 {recall:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
