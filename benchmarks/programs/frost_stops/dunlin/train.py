import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F

from layout import PLACES, open_groups
from model import Scorer, average_grads

PLAN = [
    {"do": "lookup", "parts": ["user_table", "item_table", "context_table"]},
    {"do": "score", "parts": ["tower"]},
    {"do": "report", "parts": ["metrics", "audit", "tower"]},
]


def report(step, loss, groups, rank):
    for name in ("metrics", "audit"):
        if rank in PLACES[name]:
            v = loss.detach().clone()
            dist.all_reduce(v, group=groups[name])
            if rank == 0:
                print(f"step {step} {name} {v.item() / len(PLACES[name]):.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = open_groups(PLAN)

    torch.manual_seed(8)
    mine = sorted(n for n in PLACES if n.endswith("_table") and rank in PLACES[n])
    model = Scorer(mine, seeds={n: 10 + i for i, n in enumerate(sorted(PLACES))})
    opt = torch.optim.Adam(model.parameters(), lr=0.05)
    taste = torch.randn(50, generator=torch.Generator().manual_seed(3))
    draw = torch.Generator().manual_seed(60 + rank)
    for step in range(1, args.steps + 1):
        ids = torch.randint(0, 50, (args.batch,), generator=draw)
        loss = F.mse_loss(model(ids), taste[ids])
        opt.zero_grad()
        loss.backward()
        average_grads(model, groups, PLACES)
        opt.step()
        if step % 10 == 0:
            report(step, loss, groups, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
