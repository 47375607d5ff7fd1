"""Distributed double DQN: each process runs its own actors and replay memory, learners share gradients."""
import argparse
import copy
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from env import GridChase

log = logging.getLogger("pike")


class Replay:
    """Ring of the newest transitions; pages of the storage are touched as it fills."""

    def __init__(self, limit, obs_dim, seed):
        self.rows = torch.empty(limit, 2 * obs_dim + 3)
        self.obs_dim = obs_dim
        self.count = self.head = 0
        self.gen = torch.Generator().manual_seed(seed)

    def push(self, rows):
        limit = len(self.rows)
        where = (self.head + torch.arange(len(rows))) % limit
        self.rows[where] = rows
        self.head = (self.head + len(rows)) % limit
        self.count = min(limit, self.count + len(rows))

    def sample(self, n):
        rows = self.rows[torch.randint(0, self.count, (n,), generator=self.gen)]
        d = self.obs_dim
        return rows[:, :d], rows[:, d : 2 * d], rows[:, -3].long(), rows[:, -2], rows[:, -1]


class QNet(nn.Module):
    def __init__(self, d, actions, h=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.value, self.adv = nn.Linear(h, 1), nn.Linear(h, actions)

    def forward(self, x):
        z = self.body(x)
        a = self.adv(z)
        return self.value(z) + a - a.mean(1, keepdim=True)


class Actor:
    def __init__(self, env, net, eps, seed):
        self.env, self.net, self.eps = env, net, eps
        self.gen = torch.Generator().manual_seed(seed)
        self.wins = self.ends = 0

    @torch.no_grad()
    def rollout(self, steps):
        out = []
        for _ in range(steps):
            o = self.env.obs()
            greedy = self.net(o).argmax(1)
            rand = torch.randint(0, 4, greedy.shape, generator=self.gen)
            a = torch.where(torch.rand(len(o), generator=self.gen) < self.eps, rand, greedy)
            n, r, won, timeout = self.env.step(a)
            out.append(torch.cat([o, n, a[:, None].float(), r[:, None], won[:, None].float()], 1))
            self.wins += won.sum()
            self.ends += (won | timeout).sum()
        return torch.cat(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=500)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--target-every", type=int, default=50)
    ap.add_argument("--limit", type=int, default=32_768)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(0)
    net = QNet(28, 4)
    model = DDP(net)
    target = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    # Ape-X ladder: more exploration on higher ranks
    eps = 0.1 + 0.4 * rank / max(1, world - 1)
    actor = Actor(GridChase(64, seed=10 + rank), net, eps, seed=20 + rank)
    memory = Replay(args.limit, obs_dim=28, seed=30 + rank)
    memory.push(actor.rollout(16))

    for u in range(args.updates):
        if u % 2 == 0:
            memory.push(actor.rollout(4))
        o, n, a, r, done = memory.sample(args.batch)
        with torch.no_grad():
            best = net(n).argmax(1, keepdim=True)
            y = r + args.gamma * (1 - done) * target(n).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(model(o).gather(1, a[:, None]).squeeze(1), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if (u + 1) % args.target_every == 0:
            target.load_state_dict(net.state_dict())
        if (u + 1) % 100 == 0:
            log.info("update %d loss %.4f memory %d success %.3f (eps %.2f)", u + 1, loss.item(), memory.count,
                     float(actor.wins) / max(1.0, float(actor.ends)), eps)
            actor.wins = actor.ends = 0

    judge = Actor(GridChase(64, seed=900 + rank), net, 0.0, seed=0)
    judge.rollout(60)
    res = torch.tensor([float(judge.wins), float(judge.ends)])
    dist.all_reduce(res)
    log.info("greedy success rate %.3f over %d episodes", (res[0] / res[1]).item(), int(res[1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
