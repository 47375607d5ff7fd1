"""Minimal data-parallel PPO on a vectorised 1-D chase environment."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class ActorCritic(nn.Module):
    def __init__(self, obs=2, hidden=64, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


class ChaseEnv:
    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n
        self.reset()

    def reset(self):
        self.pos = torch.rand(self.n, generator=self.g) * 2 - 1
        self.goal = torch.rand(self.n, generator=self.g) * 2 - 1
        return self.obs()

    def obs(self):
        return torch.stack([self.pos, self.goal], -1)

    def step(self, a):
        self.pos = (self.pos + (a.float() - 1) * 0.1).clamp(-1, 1)
        return self.obs(), -(self.pos - self.goal).abs()


@torch.no_grad()
def collect(policy, env, horizon):
    obs, buf = env.reset(), []
    for _ in range(horizon):
        logits, value = policy(obs)
        d = Categorical(logits=logits)
        a = d.sample()
        nxt, r = env.step(a)
        buf.append((obs, a, d.log_prob(a), r, value))
        obs = nxt
    o, a, lp, r, v = (torch.stack(t) for t in zip(*buf))
    ret = torch.zeros_like(r)
    run = torch.zeros(env.n)
    for t in reversed(range(horizon)):
        run = r[t] + 0.95 * run
        ret[t] = run
    return o.flatten(0, 1), a.flatten(), lp.flatten(), ret.flatten(), (ret - v).flatten()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--clip", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    learner = DDP(ActorCritic())
    behaviour = copy.deepcopy(learner.module).eval()
    opt = torch.optim.Adam(learner.parameters(), lr=3e-3)
    env = ChaseEnv(32, seed=100 + rank)
    torch.manual_seed(1000 + rank)
    for it in range(args.iterations):
        o, a, old_lp, ret, adv = collect(behaviour, env, 16)
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        for _ in range(args.epochs):
            logits, v = learner(o)
            d = Categorical(logits=logits)
            ratio = (d.log_prob(a) - old_lp).exp()
            pg = -torch.min(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv).mean()
            loss = pg + 0.5 * (v - ret).pow(2).mean() * 0.01 - 0.01 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        behaviour.load_state_dict(learner.module.state_dict())
        if rank == 0:
            print(f"iter {it} return {ret.mean():.3f} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
