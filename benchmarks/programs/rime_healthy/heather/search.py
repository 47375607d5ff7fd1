"""Random search; trials are dealt over ranks, results meet at the end."""
import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 8, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, 0]) * x[:, 1] + 0.5 * (x[:, 2] * x[:, 3]).abs() + 0.05 * torch.randn(n, generator=g)
    return x, y[:, None]


def sample_space(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = []
    for i in range(n):
        u = torch.rand(4, generator=g).tolist()
        out.append(dict(trial=i, lr=10 ** (-4 + 3 * u[0]), width=[32, 64, 128][int(u[1] * 3)],
                        depth=1 + int(u[2] * 3), opt="adam" if u[3] < 0.5 else "sgd"))
    return out


def run_trial(cfg, data, val, steps, bsz=128):
    torch.manual_seed(cfg["trial"])
    layers, d = [], 8
    for _ in range(cfg["depth"]):
        layers += [nn.Linear(d, cfg["width"]), nn.GELU()]
        d = cfg["width"]
    net = nn.Sequential(*layers, nn.Linear(d, 1))
    cls = torch.optim.Adam if cfg["opt"] == "adam" else torch.optim.SGD
    opt = cls(net.parameters(), lr=cfg["lr"])
    x, y = data
    for _ in range(steps):
        ix = torch.randint(0, len(x), (bsz,))
        loss = nn.functional.mse_loss(net(x[ix]), y[ix])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return nn.functional.mse_loss(net(val[0]), val[1]).item(), net.state_dict()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=12)
    ap.add_argument("--steps", type=int, default=800)
    ap.add_argument("--report", default="search.json")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data, val = dataset(6000, 1), dataset(1500, 2)
    results, best = [], (float("inf"), None)
    for cfg in sample_space(args.trials)[rank::world]:
        t0 = time.time()
        mse, state = run_trial(cfg, data, val, args.steps)
        results.append(dict(cfg, mse=mse, seconds=round(time.time() - t0, 2), worker=rank))
        print(f"[worker {rank}] trial {cfg['trial']} {cfg['opt']} lr={cfg['lr']:.1e} "
              f"{cfg['depth']}x{cfg['width']} mse={mse:.4f}", flush=True)
        if mse < best[0]:
            best = (mse, state)
    everything = [None] * world
    dist.all_gather_object(everything, results)
    flat = sorted((r for part in everything for r in part), key=lambda r: r["mse"])
    if flat[0]["worker"] == rank:
        torch.save(best[1], "best.pt")
    if rank == 0:
        with open(args.report, "w") as f:
            json.dump(flat, f, indent=1)
        print("best", flat[0], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
