"""Actor-learner Q-learning on a grid world: rank 0 learns, the other ranks act."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from replay import ReplayBuffer

log = logging.getLogger("actor-learner")
SIDE = 24


class QNet(nn.Module):
    def __init__(self, ch=16, actions=4):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, ch, 3, stride=2, padding=1), nn.ReLU(),
                                  nn.Conv2d(ch, ch, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(ch * 36, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


class GridWorld:
    """Batch of walkers that look for a goal cell."""

    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, walkers, gen):
        self.n, self.gen = walkers, gen
        self.pos = torch.randint(SIDE, (walkers, 2), generator=gen)
        self.goal = torch.randint(SIDE, (walkers, 2), generator=gen)

    def observe(self):
        obs = torch.zeros(self.n, 2, SIDE, SIDE)
        idx = torch.arange(self.n)
        obs[idx, 0, self.pos[:, 0], self.pos[:, 1]] = 1
        obs[idx, 1, self.goal[:, 0], self.goal[:, 1]] = 1
        return obs

    def step(self, action):
        before = (self.pos - self.goal).abs().sum(1)
        self.pos = (self.pos + self.MOVES[action]).clamp(0, SIDE - 1)
        after = (self.pos - self.goal).abs().sum(1)
        done = after == 0
        reward = (before - after).float() * 0.1 + done.float()
        fresh = torch.randint(SIDE, (self.n, 2), generator=self.gen)
        self.goal = torch.where(done[:, None], fresh, self.goal)
        return reward


def learner(args, net, world):
    target = QNet()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    buffer = ReplayBuffer(args.capacity, (2, SIDE, SIDE))
    gen = torch.Generator().manual_seed(9)
    shape = (args.walkers, 2, SIDE, SIDE)
    for it in range(args.iterations):
        for src in range(1, world):
            obs, nxt = torch.empty(shape), torch.empty(shape)
            action, reward = torch.empty(args.walkers, dtype=torch.long), torch.empty(args.walkers)
            for t in (obs, action, reward, nxt):
                dist.recv(t, src=src)
            buffer.add(obs, action, reward, nxt)
        if it < args.warmup:
            loss = torch.tensor(0.0)
        for _ in range(args.updates if it >= args.warmup else 0):
            o, a, r, n = buffer.sample(args.batch, gen)
            with torch.no_grad():
                y = r + 0.95 * target(n).max(1).values
            loss = F.smooth_l1_loss(net(o).gather(1, a[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 20 == 0:
            target.load_state_dict(net.state_dict())
            log.info("iteration %d chunks %d/%d loss %.4f", it, buffer.size, args.capacity, loss.item())
        dist.broadcast(parameters_to_vector(net.parameters()).detach(), src=0)


def actor(args, net, rank):
    gen = torch.Generator().manual_seed(100 + rank)
    env = GridWorld(args.walkers, gen)
    weights = parameters_to_vector(net.parameters()).detach()
    total = 0.0
    for it in range(args.iterations):
        eps = max(0.1, 1.0 - it / (0.6 * args.iterations))
        obs = env.observe()
        with torch.no_grad():
            action = net(obs).argmax(1)
        explore = torch.rand(args.walkers, generator=gen) < eps
        action = torch.where(explore, torch.randint(4, (args.walkers,), generator=gen), action)
        reward = env.step(action)
        total += reward.mean().item()
        for t in (obs, action, reward, env.observe()):
            dist.send(t, dst=0)
        dist.broadcast(weights, src=0)
        vector_to_parameters(weights, net.parameters())
    log.info("actor %d mean reward %.3f", rank, total / args.iterations)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=160)
    ap.add_argument("--walkers", type=int, default=64)
    ap.add_argument("--capacity", type=int, default=160, help="chunks of transitions kept by the learner")
    ap.add_argument("--warmup", type=int, default=10)
    ap.add_argument("--updates", type=int, default=2)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    net = QNet()
    t0 = time.perf_counter()
    learner(args, net, world) if rank == 0 else actor(args, net, rank)
    dist.barrier()
    if rank == 0:
        log.info("done in %.1fs", time.perf_counter() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
