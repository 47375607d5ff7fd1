import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from combine import Accumulating

log = logging.getLogger("ibis")


class PolicyValue(nn.Module):
    def __init__(self, board=25, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(board, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.policy = nn.Linear(hidden, board)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), torch.tanh(self.value(h))


def positions(n, g):
    x = torch.randint(-1, 2, (n, 25), generator=g).float()
    grid = x.view(n, 1, 5, 5)
    support = nn.functional.avg_pool2d(grid, 3, stride=1, padding=1).flatten(1)
    move = support.masked_fill(x != 0, -9.0).argmax(1)
    return x, move, torch.sign(x.sum(1, keepdim=True))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--games", type=int, default=160)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--every", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(0)
    net = PolicyValue()
    opt = Accumulating(net.parameters(), every=args.every, lr=3e-3)
    g = torch.Generator().manual_seed(70 + rank)
    avg = torch.zeros(())
    for game in range(args.games):
        x, move, winner = positions(args.batch, g)
        opt.zero_grad()
        logits, value = net(x)
        loss = nn.functional.cross_entropy(logits, move) + nn.functional.mse_loss(value, winner)
        loss.backward()
        avg += loss.detach()
        if opt.step() and (game + 1) % (8 * args.every) == 0:
            dist.all_reduce(avg)
            log.info("game %d loss %.4f", game + 1, avg.item() / (8 * args.every * dist.get_world_size()))
            avg.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
