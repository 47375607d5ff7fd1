"""Advantage actor-critic on a batch of simulated carts with randomised dynamics.

Every process simulates its own family of carts; the policy is shared through DDP.
"""
import argparse
import dataclasses
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclasses.dataclass
class Settings:
    envs: int = 32
    horizon: int = 24
    iterations: int = 12
    inner_epochs: int = 2
    gamma: float = 0.97
    lam: float = 0.92
    clip: float = 0.2
    lr: float = 3e-3
    entropy: float = 0.003
    seed: int = 21


class CartField:
    """Point masses pushed along a track towards a target that moves slowly."""

    obs_dim = 5

    def __init__(self, n, generator, wind, mass):
        self.n, self.g, self.wind, self.mass = n, generator, wind, mass
        self.reset()

    def rand(self, *shape):
        return torch.randn(*shape, generator=self.g)

    def reset(self):
        self.pos = self.rand(self.n) * 2 + self.wind
        self.vel = self.rand(self.n) * 0.5
        self.target = self.rand(self.n)
        self.clock = torch.zeros(self.n)
        return self.observe()

    def observe(self):
        return torch.stack([self.pos * 10, self.vel, self.target * 10, self.pos - self.target, self.clock], dim=-1)

    def step(self, action):
        force = action.clamp(-2, 2).squeeze(-1)
        self.vel = 0.95 * self.vel + 0.2 * (2 * force / self.mass + 0.1 * self.wind)
        self.pos = self.pos + 0.2 * self.vel
        self.target = self.target + 0.02 * self.rand(self.n)
        self.clock = self.clock + 1
        reward = -0.1 * (self.pos - self.target).abs() - 0.001 * force.pow(2)
        done = (self.clock >= 40) | (self.pos.abs() > 12)
        fresh_pos, fresh_vel = self.rand(self.n) * 2 + self.wind, self.rand(self.n) * 0.5
        self.pos = torch.where(done, fresh_pos, self.pos)
        self.vel = torch.where(done, fresh_vel, self.vel)
        self.clock = torch.where(done, torch.zeros(self.n), self.clock)
        return self.observe(), reward, done.float()


class RunningNorm(nn.Module):
    """Keeps mean and variance of the observations seen so far."""

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.tensor(1e-3))

    @torch.no_grad()
    def update(self, x):
        x = x.reshape(-1, x.size(-1))
        n = torch.tensor(float(x.size(0)))
        total, square = x.sum(0), x.pow(2).sum(0)
        mean = total / n
        var = square / n - mean.pow(2)
        delta = mean - self.mean
        whole = self.count + n
        self.var.copy_((self.var * self.count + var * n + delta.pow(2) * self.count * n / whole) / whole)
        self.mean.add_(delta * n / whole)
        self.count.copy_(whole)

    def forward(self, x):
        return ((x - self.mean) / (self.var + 1e-6).sqrt()).clamp(-8, 8)


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, 1)
        self.value = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        h = self.body(obs)
        return self.mu(h), self.log_std.exp().expand(obs.size(0), 1), self.value(h).squeeze(-1)


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.policy = DDP(ActorCritic(CartField.obs_dim))
        self.normalizer = RunningNorm(CartField.obs_dim)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr, eps=1e-5)
        self.noise = torch.Generator().manual_seed(cfg.seed + 1000 + self.rank)
        env_rng = torch.Generator().manual_seed(cfg.seed + 2000 + self.rank)
        spread = (self.rank - (self.world - 1) / 2) * 1.5
        self.env = CartField(cfg.envs, env_rng, wind=spread, mass=1.0 + 0.4 * self.rank)
        self.obs = self.env.reset()

    @torch.no_grad()
    def rollout(self):
        cfg = self.cfg
        obs, act, logp, rew, done, val, raw = [], [], [], [], [], [], []
        for _ in range(cfg.horizon):
            seen = self.normalizer(self.obs)
            mu, std, v = self.policy.module(seen)
            a = mu + std * torch.randn(mu.shape, generator=self.noise)
            nxt, r, d = self.env.step(a)
            raw.append(self.obs); obs.append(seen); act.append(a); val.append(v); rew.append(r); done.append(d)
            logp.append(torch.distributions.Normal(mu, std).log_prob(a).squeeze(-1))
            self.obs = nxt
        last = self.policy.module(self.normalizer(self.obs))[2]
        adv, running = torch.zeros(cfg.horizon, cfg.envs), torch.zeros(cfg.envs)
        for t in reversed(range(cfg.horizon)):
            follow = last if t == cfg.horizon - 1 else val[t + 1]
            delta = rew[t] + cfg.gamma * follow * (1 - done[t]) - val[t]
            running = delta + cfg.gamma * cfg.lam * (1 - done[t]) * running
            adv[t] = running
        self.normalizer.update(torch.stack(raw))
        values = torch.stack(val)
        batch = dict(obs=torch.cat(obs), act=torch.cat(act), logp=torch.cat(logp),
                     adv=adv.flatten(), ret=(adv + values).flatten())
        return batch, torch.stack(rew).mean()

    def whiten(self, adv):
        moments = torch.stack([adv.sum(), adv.pow(2).sum(), torch.tensor(float(adv.numel()))])
        dist.all_reduce(moments)
        mean = moments[0] / moments[2]
        std = (moments[1] / moments[2] - mean ** 2).clamp(min=1e-8).sqrt()
        return (adv - mean) / std

    def update(self, batch):
        cfg = self.cfg
        batch["adv"] = self.whiten(batch["adv"])
        n = batch["adv"].numel()
        for _ in range(cfg.inner_epochs):
            order = torch.randperm(n, generator=self.noise)
            for idx in order.chunk(4):
                mu, std, value = self.policy(batch["obs"][idx])
                dist_now = torch.distributions.Normal(mu, std)
                ratio = (dist_now.log_prob(batch["act"][idx]).squeeze(-1) - batch["logp"][idx]).exp()
                adv = batch["adv"][idx]
                surrogate = torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv).mean()
                value_loss = (value - batch["ret"][idx]).pow(2).mean()
                loss = -surrogate + 0.5 * value_loss - cfg.entropy * dist_now.entropy().mean()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
        return value_loss.item()

    def save(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"policy": self.policy.module.state_dict(), "normalizer": self.normalizer.state_dict()}, path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=Settings.iterations)
    ap.add_argument("--save", default="runs/tinos/policy.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    learner = Learner(Settings(iterations=args.iterations))
    for it in range(args.iterations):
        batch, reward = learner.rollout()
        critic = learner.update(batch)
        dist.all_reduce(reward)
        if learner.rank == 0 and it % 4 == 0:
            print(f"iteration {it} reward {reward.item() / learner.world:.3f} critic {critic:.3f}", flush=True)
    if learner.rank == 0:
        learner.save(args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
