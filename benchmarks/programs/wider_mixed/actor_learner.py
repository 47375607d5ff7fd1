"""Rank 0 learns, the remaining ranks roll out. Actors fetch weights only every few rollouts."""
import collections
import random

import torch
import torch.distributed as dist
from torch import nn

ROUNDS, SYNC_EVERY, HORIZON = 24, 4, 40


class Corridor:
    """Walk to the right end; slippery, episodes end after a random number of steps."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        self.x, self.limit = 0, self.rng.randint(15, HORIZON)
        self.t = 0
        return self.obs()

    def obs(self):
        return torch.tensor([self.x / 10, self.t / HORIZON, float(self.x > 5)])

    def step(self, a):
        self.t += 1
        if self.rng.random() < 0.1:
            a = 1 - a
        self.x = max(0, self.x + (1 if a else -1))
        return self.obs(), float(self.x >= 10), self.t >= self.limit or self.x >= 10


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, o):
        h = self.trunk(o)
        return self.pi(h), self.v(h).squeeze(-1)


def rollout(env, policy):
    traj = []
    o, done = env.reset(), False
    while not done:
        with torch.no_grad():
            logits, _ = policy(o)
            d = torch.distributions.Categorical(logits=logits)
            a = d.sample()
        o2, r, done = env.step(int(a))
        traj.append((o, int(a), r, float(d.log_prob(a))))
        o = o2
    return traj


def learner_update(policy, opt, trajs):
    for traj in trajs:
        obs = torch.stack([t[0] for t in traj])
        act = torch.tensor([t[1] for t in traj])
        old = torch.tensor([t[3] for t in traj])
        ret, acc = [], 0.0
        for t in reversed(traj):
            acc = t[2] + 0.97 * acc
            ret.insert(0, acc)
        ret = torch.tensor(ret)
        logits, v = policy(obs)
        lp = torch.distributions.Categorical(logits=logits).log_prob(act)
        rho = (lp.detach() - old).exp().clamp(max=1.0)
        loss = -(rho * lp * (ret - v.detach())).mean() + (v - ret).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def publish(policy):
    for p in policy.state_dict().values():
        dist.broadcast(p, src=0)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50 + rank)
    policy = Policy()
    publish(policy)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3) if rank == 0 else None
    env = Corridor(seed=rank) if rank else None
    score = collections.deque(maxlen=50)
    for rnd in range(ROUNDS):
        mine = rollout(env, policy) if rank else None
        inbox = [None] * world if rank == 0 else None
        dist.gather_object(mine, inbox, dst=0)
        if rank == 0:
            trajs = [t for t in inbox if t is not None]
            learner_update(policy, opt, trajs)
            score.extend(sum(s[2] for s in t) for t in trajs)
        if (rnd + 1) % SYNC_EVERY == 0:
            publish(policy)
            if rank == 0:
                print(f"round {rnd} success {sum(score) / len(score):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
