"""Cross-validation folds handed out by rank 0 to the other ranks."""
import argparse
import traceback
from collections import deque

import torch
import torch.distributed as dist
from torch import nn

from comm import recv_obj, send_obj


def fit_fold(fold, n_folds, rows):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 5, generator=g)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.1 * torch.randn(rows, generator=g)
    held = torch.arange(rows) % n_folds == fold["index"]
    model = nn.Linear(5, 1)
    opt = torch.optim.LBFGS(model.parameters(), lr=fold["lr"], max_iter=15)

    def closure():
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x[~held]).squeeze(1), y[~held])
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()}")
        loss.backward()
        return loss

    for _ in range(4):
        opt.step(closure)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x[held]).squeeze(1), y[held]).item()


def worker(args):
    while True:
        _, msg = recv_obj(0)
        if msg["kind"] == "stop":
            break
        try:
            answer = {"kind": "result", "score": fit_fold(msg["fold"], args.folds, args.rows)}
        except FloatingPointError:
            answer = {"kind": "failed", "trace": traceback.format_exc(limit=1)}
        send_obj(dict(answer, fold=msg["fold"]), 0)


def plan(args):
    jobs = [{"index": i, "lr": lr} for lr in (0.5, 1.0) for i in range(args.folds)]
    return jobs + [{"index": 0, "lr": args.stress_lr}]


def coordinator(args, world):
    jobs = plan(args)
    queues = {w: deque(jobs[w - 1::world - 1]) for w in range(1, world)}
    todo, scores, failed = len(jobs), {}, []
    idle = set()
    for peer in queues:
        send_obj({"kind": "task", "fold": queues[peer].popleft()}, peer)
    while todo:
        peer, answer = recv_obj()
        todo -= 1
        more = bool(queues[peer])
        if more:
            send_obj({"kind": "task", "fold": queues[peer].popleft()}, peer)
        if answer["kind"] == "failed":
            failed.append(answer["fold"])
            continue
        scores.setdefault(answer["fold"]["lr"], []).append(answer["score"])
        if not more:
            idle.add(peer)
    for peer in idle:
        send_obj({"kind": "stop"}, peer)
    for lr, vals in sorted(scores.items()):
        print(f"lr {lr:g}: {sum(vals) / len(vals):.4f} over {len(vals)} folds", flush=True)
    print(f"{len(failed)} folds failed", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folds", type=int, default=5)
    ap.add_argument("--rows", type=int, default=400)
    ap.add_argument("--stress-lr", type=float, default=1e25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        coordinator(args, dist.get_world_size())
    else:
        worker(args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
