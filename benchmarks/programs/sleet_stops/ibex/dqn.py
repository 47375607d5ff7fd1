"""Q-learning on a grid: learners and actors on ranks of their own."""
import argparse
import collections
import logging
import random

import torch
import torch.distributed as dist
from torch import nn

from roles import Roles

SIDE = 6
log = logging.getLogger("dqn")


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.f(x / SIDE)


class Grid:
    MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.pos = [self.rng.randrange(SIDE) for _ in range(2)]
        self.goal = [self.rng.randrange(SIDE) for _ in range(2)]
        self.age = 0

    def view(self):
        return [float(v) for v in self.pos + self.goal]

    def step(self, a):
        self.age += 1
        self.pos = [min(max(p + m, 0), SIDE - 1) for p, m in zip(self.pos, self.MOVES[a])]
        won = self.pos == self.goal
        out = self.view(), 1.0 if won else -0.02, float(won)
        if won or self.age > 30:
            self.reset()
        return out


def play(net, grid, n, eps, rng):
    rows = torch.empty(n, 11)
    for i in range(n):
        s = grid.view()
        with torch.no_grad():
            a = rng.randrange(4) if rng.random() < eps else net(torch.tensor(s)).argmax().item()
        s2, r, end = grid.step(a)
        rows[i] = torch.tensor([*s, a, *s2, r, end])
    return rows


def learn(net, target, opt, memory, batch, roles):
    rows = torch.stack(random.sample(memory, batch))
    s, a, s2, r, end = rows[:, :4], rows[:, 4].long(), rows[:, 5:9], rows[:, 9], rows[:, 10]
    with torch.no_grad():
        want = r + 0.95 * (1 - end) * target(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), want)
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, group=roles.learners)
        p.grad /= len(roles.learner_ranks)
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=25)
    ap.add_argument("--plays", type=int, default=128)
    ap.add_argument("--updates", type=int, default=10)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s | %(message)s")
    dist.init_process_group("gloo")
    roles = Roles()
    torch.manual_seed(0)
    random.seed(roles.rank)
    net, target = QNet(), QNet()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    memory = collections.deque(maxlen=4000)
    grid = Grid(random.Random(roles.rank))
    for r in range(a.rounds):
        if roles.learning:
            rows = torch.empty(a.plays, 11)
            dist.recv(rows, roles.partner(), tag=r)
            memory.extend(rows)
            for _ in range(a.updates):
                loss = learn(net, target, opt, memory, 64, roles)
            if r % 3 == 0:
                target.load_state_dict(net.state_dict())
        else:
            rows = play(net, grid, a.plays, max(0.05, 1 - r / 15), random)
            dist.send(rows, roles.partner(), tag=r)
            wins = rows[:, 10].sum()
            dist.reduce(wins, dst=roles.actor_ranks[0], group=roles.actors)
            if roles.rank == roles.actor_ranks[0]:
                log.info("round %d wins %d", r, int(wins))
        if r % 2 == 1:
            flat = nn.utils.parameters_to_vector(net.parameters()).detach()
            dist.broadcast(flat, src=0)
            if not roles.learning:
                nn.utils.vector_to_parameters(flat, net.parameters())
        if roles.rank == 0 and r % 5 == 0:
            log.info("round %d loss %.4f", r, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
