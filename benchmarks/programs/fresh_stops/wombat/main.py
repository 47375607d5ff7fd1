"""Two teams of two train two sizes of a model, each at its own pace; at the end the smaller one is judged by the larger one.

    torchrun --nproc-per-node 4 main.py
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TEAMS = {"small": {"ranks": [0, 1], "width": 24, "steps": 60}, "large": {"ranks": [2, 3], "width": 320, "steps": 900}}


def my_team(rank):
    return next(n for n, t in TEAMS.items() if rank in t["ranks"])


def net(width):
    return nn.Sequential(nn.Linear(10, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))


def rule(x):
    return (x[:, :5] * x[:, 5:]).sum(1, keepdim=True).tanh()


def train(team, group, args):
    torch.manual_seed(args.seed)
    model = DDP(net(team["width"]), process_group=group)
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
    place = dist.get_rank(group)
    gen = torch.Generator().manual_seed(args.seed * 7 + team["width"] * 100 + place)
    for step in range(1, team["steps"] + 1):
        x = torch.randn(64, 10, generator=gen)
        loss = nn.functional.mse_loss(model(x), rule(x))
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        if step % 60 == 0:
            seen = loss.detach().clone()
            dist.all_reduce(seen, group=group)
            if place == 0:
                print(f"width {team['width']} step {step} loss {seen.item() / len(team['ranks']):.4f}", flush=True)
    return model.module


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=62)
    ap.add_argument("--out", default="/tmp/teams")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {name: dist.new_group(t["ranks"]) for name, t in TEAMS.items()}
    name = my_team(rank)
    model = train(TEAMS[name], groups[name], args)
    if rank == TEAMS[name]["ranks"][0]:
        torch.save(model.state_dict(), f"{args.out}-{name}.pt")
    dist.barrier()
    x = torch.randn(512, 10, generator=torch.Generator().manual_seed(args.seed + 1))
    with torch.no_grad():
        answer = model(x)
    answers = [torch.zeros_like(answer) for _ in range(dist.get_world_size())]
    dist.all_gather(answers, answer)
    if rank == 0:
        gap = (answers[0] - answers[2]).pow(2).mean().item()
        print(f"small against large: {gap:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
