import argparse
import logging
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from game import Board, Ring


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.policy, self.value = nn.Linear(width, 9), nn.Linear(width, 1)

    def forward(self, cells):
        h = self.body(torch.cat([(cells == 1).float(), (cells == -1).float()], 1))
        return self.policy(h), self.value(h).squeeze(1).tanh()


@torch.no_grad()
def choose(net, board, rng, eps):
    """One-ply search on the value net."""
    moves = board.legal()
    if rng.random() < eps:
        return rng.choice(moves)
    after, score = [], []
    for m in moves:
        nxt = Board()
        nxt.cells = list(board.cells)
        nxt.play(m)
        score.append(1.0 if nxt.won else 0.0 if nxt.over else None)
        after.append(nxt.cells)
    values = net(torch.tensor(after, dtype=torch.float32))[1].tolist()
    score = [-v if s is None else s for s, v in zip(score, values)]
    return moves[max(range(len(moves)), key=score.__getitem__)]


def self_play(net, ring, rng, games, eps):
    for _ in range(games):
        board, path = Board(), []
        while not board.over:
            m = choose(net, board, rng, eps)
            path.append((list(board.cells), m))
            board.play(m)
        z = 1.0 if board.won else 0.0
        for cells, m in reversed(path):
            ring.add((cells, m, z))
            z = -z


def against_random(net, rng, games):
    points = 0.0
    for k in range(games):
        board, mine = Board(), k % 2 == 0
        while not board.over:
            board.play(choose(net, board, rng, 0.0) if mine else rng.choice(board.legal()))
            mine = not mine
        points += 0.5 if not board.won else float(not mine)
    return points / games


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=14)
    ap.add_argument("--games", type=int, default=24)
    ap.add_argument("--updates", type=int, default=20)
    ap.add_argument("--capacity", type=int, default=1500)
    ap.add_argument("--batch", type=int, default=128)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    rng, ring = random.Random(70 + rank), Ring(args.capacity, seed=rank)
    match = random.Random(5)
    for rnd in range(args.rounds):
        self_play(model.module, ring, rng, args.games, eps=max(0.1, 0.6 - 0.05 * rnd))
        for _ in range(args.updates):
            cells, move, z = zip(*ring.sample(args.batch))
            p, v = model(torch.tensor(cells, dtype=torch.float32))
            z = torch.tensor(z)
            weight = (z > -0.5).float()
            loss = F.mse_loss(v, z) + 0.3 * (weight * F.cross_entropy(p, torch.tensor(move), reduction="none")).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        fill = [None] * world
        dist.all_gather_object(fill, (len(ring.items), ring.added))
        if rnd % 4 == 3 or rnd == args.rounds - 1:
            if rank == 0:
                logging.info("round %d loss %.4f buffers (held, ever) %s score against random %.3f", rnd, loss.item(), fill, against_random(model.module, match, 100))
            dist.barrier()      # the others wait for the match
    digest = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    every = [torch.empty_like(digest) for _ in range(world)]
    dist.all_gather(every, digest)
    logging.info("weights apart by %.3g", max((e - digest).abs().max().item() for e in every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
