"""Learns image embeddings by contrast with a queue of keys; evaluates by nearest neighbours in a gallery."""
import argparse
import collections
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 12


class Encoder(nn.Module):
    def __init__(self, dim=48, width=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class KeyQueue:
    def __init__(self, size, dim):
        self.keys = F.normalize(torch.randn(size, dim), dim=1)
        self.ptr = 0

    @torch.no_grad()
    def push(self, keys):
        got = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(got, keys.contiguous())
        for k in torch.cat(got).split(1):
            self.keys[self.ptr] = k[0]
            self.ptr = (self.ptr + 1) % len(self.keys)


def views(proto, n, g):
    y = torch.randint(0, CLASSES, (n,), generator=g)
    make = lambda: proto[y] + 1.5 * torch.randn(n, 3, 32, 32, generator=g)
    return make(), make(), y


class Evaluator:
    """Keeps the features of the last few evaluations and of the best ones."""

    def __init__(self, proto, seed, window=3, best=2):
        g = torch.Generator().manual_seed(seed)
        self.gallery, _, self.gallery_y = views(proto, 384, g)
        self.query, _, self.query_y = views(proto, 192, g)
        self.recent = collections.deque(maxlen=window)
        self.best, self.keep = [], best

    @torch.no_grad()
    def __call__(self, model, step):
        model.eval()
        feats = torch.cat([model(x) for x in self.gallery.split(64)])
        query = torch.cat([model(x) for x in self.query.split(64)])
        model.train()
        sim = query @ feats.t()
        near = sim.topk(5, dim=1).indices
        hit = (self.gallery_y[near].mode(1).values == self.query_y).float().mean()
        dist.all_reduce(hit)
        acc = hit.item() / dist.get_world_size()
        drift = (feats - self.recent[-1]).norm(dim=1).mean().item() if self.recent else 0.0
        self.recent.append(feats)
        self.best.append((acc, step, feats, query, sim))
        self.best.sort(key=lambda r: r[0], reverse=True)
        del self.best[self.keep:]
        return acc, drift


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--queue", type=int, default=256)
    ap.add_argument("--momentum", type=float, default=0.99)
    ap.add_argument("--tau", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    proto = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    query_net = Encoder()
    key_net = copy.deepcopy(query_net).requires_grad_(False)
    ddp = DDP(query_net)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    queue = KeyQueue(args.queue, 48)
    evaluate = Evaluator(proto, seed=400 + rank)
    g = torch.Generator().manual_seed(70 + rank)
    for step in range(1, args.steps + 1):
        a, b, _ = views(proto, args.batch, g)
        q = ddp(a)
        with torch.no_grad():
            for pk, pq in zip(key_net.parameters(), query_net.parameters()):
                pk.mul_(args.momentum).add_(pq, alpha=1 - args.momentum)
            k = key_net(b)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.keys.t()], 1) / args.tau
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue.push(k)
        if step % 10 == 0:
            acc, drift = evaluate(query_net, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} knn {acc:.3f} drift {drift:.3f}", flush=True)
    if rank == 0:
        print("best", [(round(r[0], 3), r[1]) for r in evaluate.best])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
