import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def parse():
    p = argparse.ArgumentParser(description="item tower training")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--items", type=int, default=2000)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--log-interval", type=int, default=10)
    p.add_argument("--lr", type=float, default=3e-3)
    return p.parse_args()


class Tower(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.query = nn.Sequential(nn.Linear(16, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, feats):
        return self.query(feats) @ self.items.weight.t()


class RecallMeter:
    """Recall over all workers since the last report."""

    def __init__(self, k=10):
        self.k = k
        self.reset()

    def reset(self):
        self.hit, self.seen = 0.0, 0

    def update(self, scores, target):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, {"scores": scores.detach(), "target": target})
        for part in gathered:
            top = part["scores"].topk(self.k, dim=1).indices
            self.hit += (top == part["target"][:, None]).any(1).sum().item()
            self.seen += len(part["target"])

    def compute(self):
        value = self.hit / max(self.seen, 1)
        self.reset()
        return value


class Clicks:
    def __init__(self, args, rank):
        self.args = args
        self.g = torch.Generator().manual_seed(500 + rank)
        world = torch.Generator().manual_seed(12)
        self.profile = torch.randn(args.items, 16, generator=world)

    def draw(self):
        item = torch.randint(0, self.args.items, (self.args.batch,), generator=self.g)
        noise = torch.randn(self.args.batch, 16, generator=self.g)
        return self.profile[item] + 0.2 * noise, item


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DDP(Tower(args.items, args.dim))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    clicks, meter = Clicks(args, rank), RecallMeter()
    t0 = time.time()
    for step in range(1, args.steps + 1):
        feats, item = clicks.draw()
        scores = model(feats)
        loss = F.cross_entropy(scores, item)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(scores, item)
        if step % args.log_interval == 0:
            recall = meter.compute()
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} recall@10 {recall:.4f} "
                      f"{(time.time() - t0) / step * 1e3:.1f} ms/step", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
