import argparse
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

from features import FeatureCache


class Probe(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.SiLU(), nn.LayerNorm(hidden),
            nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def say(rank, text):
    print(f"{time.strftime('%H:%M:%S')} [{rank}] {text}", flush=True)


def synced(module, world):
    for p in module.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(world)


def evaluate(model, x, y):
    with torch.no_grad():
        right = ((model(x) > 0) == (y > 0.5)).float().sum()
    both = torch.stack([right, torch.tensor(float(len(y)))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1800)
    parser.add_argument("--bands", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--stagger", type=float, default=0.5, help="seconds between the ranks' first reads")
    parser.add_argument("--cache", default=None)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    box = [args.cache or tempfile.mkdtemp(prefix="irrawaddy_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)

    cache = FeatureCache(box[0], rank)
    time.sleep(args.stagger * rank)
    began = time.time()
    recipe = {"rows": args.rows, "bands": args.bands, "seed": 40, "seconds": 1.5}
    table = torch.from_numpy(cache.load("train", recipe))
    say(rank, f"features {tuple(table.shape)} after {time.time() - began:.1f}s, waited {cache.lock.waited:.1f}s")

    x, y = table[:, :-1], table[:, -1]
    held = len(x) // 5
    vx, vy = x[:held][rank::world], y[:held][rank::world]
    x, y = x[held:][rank::world], y[held:][rank::world]

    model = Probe(x.size(1), args.hidden)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        running = 0.0
        for i in range(0, len(order) - args.batch + 1, args.batch):
            idx = order[i:i + args.batch]
            loss = loss_fn(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            synced(model, world)
            opt.step()
            running += loss.item()
        acc = evaluate(model, vx, vy)
        if rank == 0:
            say(rank, f"epoch {epoch} loss {running / (len(order) // args.batch):.4f} acc {acc:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
