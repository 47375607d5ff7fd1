"""Random search under torchrun: one trial at a time on every process, a leaderboard at the end."""
import argparse
import json
import os
import random
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def draw_trials(count, seed):
    rng = random.Random(seed)
    trials = []
    for number in range(count):
        trials.append({
            "number": number,
            "lr": 10 ** rng.uniform(-3.2, -1.5),
            "width": rng.choice([16, 24, 48]),
            "activation": rng.choice(sorted(ACTIVATIONS)),
            "dropout": rng.choice([0.0, 0.1, 0.2]),
            "seed": 1000 + number,
        })
    return trials


def friedman(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 8, generator=g)
    y = 10 * torch.sin(3.14159 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y - 14.4) / 4.9 + 0.1 * torch.randn(count, generator=g)


def build(trial):
    act = ACTIVATIONS[trial["activation"]]
    return nn.Sequential(nn.Linear(8, trial["width"]), act(), nn.Dropout(trial["dropout"]),
                         nn.Linear(trial["width"], trial["width"]), act(), nn.Linear(trial["width"], 1))


def run_trial(trial, data, epochs, batch):
    torch.manual_seed(trial["seed"])
    (x, y), (vx, vy) = data
    net = build(trial)
    opt = torch.optim.AdamW(net.parameters(), lr=trial["lr"])
    best, patience, used = float("inf"), 0, 0
    keep = None
    for epoch in range(epochs):
        used += 1
        net.train()
        for pick in torch.randperm(len(y)).split(batch):
            loss = F.mse_loss(net(x[pick]).squeeze(-1), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            score = F.mse_loss(net(vx).squeeze(-1), vy).item()
        if score < best - 1e-4:
            best, patience = score, 0
            keep = {k: v.clone() for k, v in net.state_dict().items()}
        else:
            patience += 1
            if patience >= 3:
                break
    return {"score": best, "epochs": used}, keep


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=7)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--seed", type=int, default=31)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "search"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    data = friedman(1500, 1), friedman(500, 2)

    mine = draw_trials(args.trials, args.seed)[rank::world]
    results = []
    for trial in mine:
        result, weights = run_trial(trial, data, args.epochs, args.batch)
        torch.save({"trial": trial, "model": weights}, out / f"trial_{trial['number']:03d}.pt")
        results.append({**trial, **result})
        print(f"worker {rank} trial {trial['number']} {trial['activation']}/{trial['width']} "
              f"lr {trial['lr']:.4f} -> {result['score']:.4f} ({result['epochs']} epochs)", flush=True)

    everyone = [None] * world if rank == 0 else None
    dist.gather_object(results, everyone, dst=0)
    if rank == 0:
        board = sorted((r for part in everyone for r in part), key=lambda r: r["score"])
        (out / "leaderboard.json").write_text(json.dumps(board, indent=1))
        first = board[0]
        print(f"winner trial {first['number']} with {first['score']:.4f}, "
              f"weights in {out}/trial_{first['number']:03d}.pt", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
