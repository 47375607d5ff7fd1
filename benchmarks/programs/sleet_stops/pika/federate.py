"""Federated training over clinics: local steps inside an island, averaging between the islands."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from islands import make_islands

log = logging.getLogger("fed")


def patients(clinic, member, n):
    g = torch.Generator().manual_seed(1000 * clinic + member)
    x = torch.randn(n, 20, generator=g) + 0.3 * clinic
    w = torch.linspace(-1, 1, 20)
    y = (x @ w + 0.5 * torch.randn(n, generator=g) > 0).long()
    return x, y


def build():
    return nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 2))


def local_round(net, opt, island, data, steps, batch):
    x, y = data
    total = 0.0
    for _ in range(steps):
        i = torch.randint(0, len(y), (batch,))
        loss = nn.functional.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        island.mean_grads(net)
        opt.step()
        total += loss.item()
    return total / steps


def summary(island, rows, round_no):
    merged = {}
    for row in rows:
        for key, value in row.items():
            merged.setdefault(key, []).append(value)
    text = ", ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in merged.items())
    log.info("round %d clinic %d: %s", round_no, island.index, text)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--width", type=int, default=2)
    ap.add_argument("--report", type=int, default=3)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    dist.init_process_group("gloo")
    island = make_islands(a.width)
    data = patients(island.index, island.here, 600 + 200 * island.index)
    torch.manual_seed(0)
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for r in range(1, a.rounds + 1):
        loss = local_round(net, opt, island, data, a.steps, a.batch)
        island.exchange(net, len(data[1]))
        if r % a.report == 0:
            with torch.no_grad():
                acc = (net(data[0]).argmax(1) == data[1]).float().mean().item()
            rows = island.collect({"loss": loss, "accuracy": acc})
            if rows is not None:
                summary(island, rows, r)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
