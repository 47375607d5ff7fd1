import argparse
import copy
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, width=768, out=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, out),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class MomentumPair:
    def __init__(self, encoder, momentum, length):
        self.key = copy.deepcopy(encoder)
        self.query = DDP(encoder)
        self.momentum = momentum
        self.queue = deque(maxlen=length)

    def update_key(self):
        with torch.no_grad():
            for q, k in zip(self.query.module.parameters(), self.key.parameters()):
                k.mul_(self.momentum).add_(q, alpha=1 - self.momentum)

    def negatives(self, n):
        if not self.queue:
            return None
        newest = list(self.queue)[-n:]
        return torch.cat(newest).detach()

    def loss(self, x1, x2, temperature=0.2):
        q = self.query(x1)
        k = self.key(x2)
        pos = (q * k.detach()).sum(-1, keepdim=True)
        negs = self.negatives(8)
        logits = pos if negs is None else torch.cat([pos, q @ negs.t()], dim=1)
        self.queue.append(k)
        target = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(logits / temperature, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    pair = MomentumPair(Encoder(), momentum=0.99, length=4096)
    opt = torch.optim.SGD(pair.query.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(args.steps):
        x = torch.randn(args.batch, 128, generator=gen)
        x1 = x + 0.1 * torch.randn(x.shape, generator=gen)
        x2 = x + 0.1 * torch.randn(x.shape, generator=gen)
        loss = pair.loss(x1, x2)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        pair.update_key()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.detach():.4f} queue {len(pair.queue)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
