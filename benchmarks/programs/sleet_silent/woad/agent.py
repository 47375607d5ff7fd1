import copy
import random
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class QNet(nn.Module):
    def __init__(self, obs, actions, hidden=96):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value, self.adv = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, o):
        h = self.trunk(o)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class Replay:
    def __init__(self, size, rng):
        self.mem, self.rng = deque(maxlen=size), rng

    def add(self, *tr):
        self.mem.append(tr)

    def sample(self, n):
        o, a, r, o2, d = zip(*self.rng.sample(list(self.mem), n))
        return torch.stack(o), torch.tensor(a), torch.tensor(r), torch.stack(o2), torch.tensor(d)


class Agent:
    def __init__(self, obs, actions, lr, gamma, tau, seed):
        torch.manual_seed(seed)
        self.actions, self.gamma, self.tau = actions, gamma, tau
        self.q = DDP(QNet(obs, actions))
        self.target = copy.deepcopy(self.q.module).requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.rng = random.Random(seed * 1009 + dist.get_rank())
        self.is_main = dist.get_rank() == 0
        self.updates = 0
        self.losses = []

    @torch.no_grad()
    def act(self, obs, eps):
        if self.rng.random() < eps:
            return self.rng.randrange(self.actions)
        return int(self.q.module(obs.unsqueeze(0)).argmax())

    def polyak(self):
        with torch.no_grad():
            for t, s in zip(self.target.parameters(), self.q.module.parameters()):
                t.lerp_(s, self.tau)

    def learn(self, batch):
        o, a, r, o2, d = batch
        with torch.no_grad():
            best = self.q.module(o2).argmax(-1, keepdim=True)
            y = r + self.gamma * (1 - d) * self.target(o2).gather(1, best).squeeze(1)
        pred = self.q(o).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(pred, y)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.opt.step()
        self.end_of_update(loss.item())

    def end_of_update(self, loss):
        self.updates += 1
        self.polyak()
        if not self.is_main:
            return
        self.losses.append(loss)
        if self.updates % 50 == 0:
            recent = self.losses[-50:]
            print(f"update {self.updates:4d} td-loss {sum(recent) / len(recent):.4f}", flush=True)
