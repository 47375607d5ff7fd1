"""Distributed DQN on a chain world with a bounded prioritized replay buffer."""
import argparse
import collections
import copy
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

N = 9


class Chain:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.pos, self.t = self.rng.randrange(N), 0
        return self.obs()

    def obs(self):
        v = torch.zeros(N)
        v[self.pos] = 1.0
        return v

    def step(self, a):
        self.pos = max(0, min(N - 1, self.pos + (1 if a else -1)))
        self.t += 1
        return self.obs(), float(self.pos == N - 1), self.t >= 12


class Replay:
    def __init__(self, size, rng):
        self.data = collections.deque(maxlen=size)
        self.prio = collections.deque(maxlen=size)
        self.rng = rng

    def add(self, item):
        self.data.append(item)
        self.prio.append(max(self.prio, default=1.0))

    def sample(self, n):
        idx = self.rng.choices(range(len(self.data)), weights=list(self.prio), k=n)
        s, a, r, s2, d = zip(*(self.data[i] for i in idx))
        return idx, torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2), torch.tensor(d).float()

    def update(self, idx, err):
        for i, e in zip(idx, err.tolist()):
            self.prio[i] = abs(e) + 1e-2


def collect(env, q, replay, n, eps, rng):
    obs = env.obs()
    for _ in range(n):
        with torch.no_grad():
            a = rng.randrange(2) if rng.random() < eps else int(q(obs).argmax())
        nxt, r, done = env.step(a)
        replay.add((obs, a, r, nxt, done))
        obs = env.reset() if done else nxt


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=80)
    ap.add_argument("--target-every", type=int, default=20)
    ap.add_argument("--gamma", type=float, default=0.9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(300 + rank)
    torch.manual_seed(2)
    q = DDP(nn.Sequential(nn.Linear(N, 32), nn.ReLU(), nn.Linear(32, 2)))
    target = copy.deepcopy(q.module).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=5e-3)
    env, replay = Chain(rng), Replay(600, rng)
    collect(env, q.module, replay, 64, 1.0, rng)
    for u in range(1, args.updates + 1):
        collect(env, q.module, replay, 16, max(0.05, 1 - u / 50), rng)
        idx, s, a, r, s2, d = replay.sample(32)
        with torch.no_grad():
            y = r + args.gamma * (1 - d) * target(s2).max(1).values
        err = y - q(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(err, torch.zeros_like(err))
        opt.zero_grad()
        loss.backward()
        opt.step()
        replay.update(idx, err.detach())
        if u % args.target_every == 0:
            target.load_state_dict(q.module.state_dict())
            if rank == 0:
                print(f"update {u} buffer {len(replay.data)} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
