"""Data-parallel DQN: every process plays its own lake and keeps its own replay memory."""
import argparse
import collections
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP

from lake import Lake

Step = collections.namedtuple("Step", "s a r s2 end")


class QNet(nn.Module):
    def __init__(self, obs, hidden=64, actions=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value, self.adv = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, x):
        h = self.trunk(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class Agent:
    def __init__(self, args, rank):
        self.args = args
        self.rng = random.Random(args.seed * 101 + rank)
        self.env = Lake(args.seed * 977 + rank)
        self.online = DDP(QNet(Lake.SIZE ** 2))
        self.opt = torch.optim.Adam(self.online.parameters(), lr=args.lr)
        self.memory = collections.deque(maxlen=args.memory)
        self.returns = collections.deque(maxlen=50)
        self.obs, self.score = self.env.reset(), 0.0
        self.episodes = self.updates = 0
        self.frozen = {}
        self.sync_frozen()

    def sync_frozen(self):
        self.frozen = {k: v.detach().clone() for k, v in self.online.module.state_dict().items()}

    def act(self, epsilon):
        if self.rng.random() < epsilon:
            return self.rng.randrange(4)
        with torch.no_grad():
            return int(self.online.module(torch.tensor([self.obs])).argmax())

    def play(self, count, epsilon):
        for _ in range(count):
            a = self.act(epsilon)
            nxt, r, end = self.env.step(a)
            self.memory.append(Step(self.obs, a, r, nxt, float(end)))
            self.score += r
            self.obs = nxt
            if end:
                self.returns.append(self.score)
                self.obs, self.score = self.env.reset(), 0.0
                self.episodes += 1

    def learn(self):
        batch = Step(*zip(*self.rng.sample(self.memory, self.args.batch)))
        s, s2 = torch.tensor(batch.s), torch.tensor(batch.s2)
        r, end = torch.tensor(batch.r), torch.tensor(batch.end)
        with torch.no_grad():
            best = self.online.module(s2).argmax(-1, keepdim=True)
            boot = functional_call(self.online.module, self.frozen, (s2,)).gather(1, best).squeeze(1)
            goal = r + self.args.gamma * (1 - end) * boot
        q = self.online(s).gather(1, torch.tensor(batch.a)[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % self.args.sync_every == 0:
            self.sync_frozen()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=240)
    ap.add_argument("--frames", type=int, default=8, help="environment frames between updates")
    ap.add_argument("--memory", type=int, default=4000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--sync-every", type=int, default=12)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--out", default="lake_run")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    agent = Agent(args, rank)
    agent.play(args.batch * 4, epsilon=1.0)

    for it in range(args.iterations):
        agent.play(args.frames, epsilon=max(0.1, 1 - it / 120))
        loss = agent.learn()
        if it % 40 == 39:
            s = torch.tensor([loss, sum(agent.returns), len(agent.returns)], dtype=torch.float64)
            dist.all_reduce(s)
            if rank == 0:
                print(f"it {it + 1} td {s[0] / world:.4f} return {s[1] / s[2]:.3f}", flush=True)

    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"online": agent.online.module.state_dict(), "frozen": agent.frozen,
                    "updates": agent.updates}, os.path.join(args.out, "agent.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
