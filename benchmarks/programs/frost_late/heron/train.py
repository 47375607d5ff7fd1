"""Multi-task training; every task lives on a subset of the ranks."""
import argparse
import json
import logging
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

from model import MultiTaskNet

log = logging.getLogger("mtl")


def load_config(path):
    cfg = json.loads(Path(path).read_text())
    active = set(cfg["tasks"]) - set(cfg.get("disabled", []))
    return cfg, active


def build_task_groups(cfg, active):
    groups = {}
    for name in active:
        groups[name] = dist.new_group(cfg["tasks"][name]["ranks"])
    return groups


def average(params, group, n):
    for p in params:
        if p.grad is None:
            continue
        dist.all_reduce(p.grad, group=group)
        p.grad.div_(n)


def make_targets(x, tasks):
    g = torch.Generator().manual_seed(5)
    out = {}
    for name, spec in tasks.items():
        w = torch.randn(x.size(1), spec["out"], generator=g) / 4
        out[name] = torch.tanh(x @ w)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default=str(Path(__file__).with_name("tasks.json")))
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg, active = load_config(args.config)
    tasks = {k: v for k, v in cfg["tasks"].items() if k in active}

    groups = build_task_groups(cfg, active)
    net = MultiTaskNet(tasks, rank)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(100 + rank)

    for step in range(cfg["steps"]):
        x = torch.randn(32, 16, generator=gen)
        targets = make_targets(x, tasks)
        losses = {k: F.mse_loss(v, targets[k]) for k, v in net(x).items()}
        opt.zero_grad()
        sum(losses.values()).backward()
        average(net.trunk.parameters(), None, world)
        for name, head in net.heads.items():
            average(head.parameters(), groups[name], len(tasks[name]["ranks"]))
        opt.step()
        if step % 10 == 0 and rank == 0:
            log.info("step %d %s", step, {k: round(v.item(), 4) for k, v in losses.items()})

    total = torch.tensor(sum(p.double().sum().item() for p in net.trunk.parameters()))
    log.info("rank %d trunk %.6f", rank, total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
