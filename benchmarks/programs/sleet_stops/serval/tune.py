"""Learning rate search with a helper rank, then the long run without it."""
import argparse
import logging
import sys

import torch
import torch.distributed as dist
from torch import nn

from crew import Crew

log = logging.getLogger("tune")


def highway(width=48, layers=3):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.t = nn.Linear(width, width), nn.Linear(width, width)
            nn.init.constant_(self.t.bias, -1.0)

        def forward(self, x):
            t = torch.sigmoid(self.t(x))
            return t * torch.relu(self.h(x)) + (1 - t) * x

    return nn.Sequential(nn.Linear(16, width), *[Layer() for _ in range(layers)], nn.Linear(width, 1))


def batch(rank, i, n=64):
    g = torch.Generator().manual_seed(10_000 * rank + i)
    x = torch.randn(n, 16, generator=g)
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:3]).tanh()


def steps(net, lr, crew, first, count):
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for i in range(first, first + count):
        x, y = batch(crew.rank, i)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        crew.mean_grads(net)
        opt.step()
    return loss.item()


@torch.no_grad()
def measure(net):
    x, y = batch(99, 0, 4000)
    return nn.functional.mse_loss(net(x), y).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rates", type=float, nargs="+", default=[0.003, 0.03, 0.1])
    ap.add_argument("--trial", type=int, default=30)
    ap.add_argument("--steps", type=int, default=800)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    crew = Crew()
    torch.manual_seed(0)
    net = highway()
    start = {k: v.clone() for k, v in net.state_dict().items()}
    scores = {}
    for lr in a.rates:
        net.load_state_dict(start)
        if not crew.helps:
            steps(net, lr, crew, 0, a.trial)
        crew.show_weights(net)
        scores[lr] = crew.verdict(measure(net) if crew.helps else 0.0)
    best = min(scores, key=scores.get)
    crew.farewell()
    if crew.helps:
        log.info("helper done, scores %s", {k: round(v, 4) for k, v in scores.items()})
        dist.destroy_process_group()
        return 0
    net.load_state_dict(start)
    for k in range(4):
        loss = steps(net, best, crew, 100 + k * a.steps // 4, a.steps // 4)
        if crew.rank == 0:
            log.info("rate %g, part %d, loss %.4f", best, k, loss)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
