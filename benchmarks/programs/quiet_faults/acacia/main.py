"""On-policy control: every rank acts in its own environments, one shared policy."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from world import Docking


@dataclass
class Hyper:
    iterations: int = 16
    envs: int = 32
    horizon: int = 24
    epochs: int = 3
    minibatches: int = 4
    gamma: float = 0.96
    lam: float = 0.92
    clip: float = 0.2
    lr: float = 3e-3
    seed: int = 50


class PolicyValue(nn.Module):
    def __init__(self, obs=8, act=2, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mu = nn.Linear(width, act)
        self.value = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def forward(self, obs):
        h = self.trunk(obs)
        return self.mu(h), self.log_std.exp().expand(len(h), -1), self.value(h).squeeze(-1)


class RunningNorm:
    def __init__(self, dim):
        self.count = torch.tensor(1e-4, dtype=torch.float64)
        self.total = torch.zeros(dim, dtype=torch.float64)
        self.square = torch.ones(dim, dtype=torch.float64) * 1e-4

    def absorb(self, x):
        x = x.double()
        fresh = torch.cat([torch.tensor([float(len(x))], dtype=torch.float64), x.sum(0), x.pow(2).sum(0)])
        dist.all_reduce(fresh)
        n = (len(fresh) - 1) // 2
        self.count = self.count + fresh[0]
        self.total = self.total + fresh[1:1 + n]
        self.square = self.square + fresh[1 + n:]

    def __call__(self, x):
        mean = self.total / self.count
        var = (self.square / self.count - mean ** 2).clamp(min=1e-6)
        return ((x - mean.float()) / var.sqrt().float()).clamp(-5, 5)


def collect(env, net, norm, h, rng):
    obs = env.reset()
    raw, seen, acts, logps, rewards, values = [], [], [], [], [], []
    with torch.no_grad():
        for _ in range(h.horizon):
            x = norm(obs)
            mu, std, v = net(x)
            a = mu + std * torch.randn(mu.shape, generator=rng)
            raw.append(obs)
            seen.append(x)
            acts.append(a)
            logps.append(torch.distributions.Normal(mu, std).log_prob(a).sum(1))
            values.append(v)
            obs, r = env.step(a)
            rewards.append(r)
        values.append(net(norm(obs))[2])
    adv, carry = [], torch.zeros(h.envs)
    for t in reversed(range(h.horizon)):
        delta = rewards[t] + h.gamma * values[t + 1] - values[t]
        carry = delta + h.gamma * h.lam * carry
        adv.append(carry)
    adv = torch.stack(adv[::-1])
    ret = adv + torch.stack(values[:-1])
    flat = lambda items: torch.cat(items) if isinstance(items, list) else items.reshape(-1)
    return flat(raw), flat(seen), flat(acts), flat(logps), flat(adv), flat(ret), torch.stack(rewards).sum(0).mean()


def standardise(adv):
    s = torch.tensor([adv.sum().item(), adv.pow(2).sum().item(), float(len(adv))], dtype=torch.float64)
    dist.all_reduce(s)
    mean = s[0] / s[2]
    std = (s[1] / s[2] - mean ** 2).clamp(min=1e-8).sqrt()
    return (adv - mean.float()) / std.float()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    h = Hyper()
    torch.manual_seed(h.seed)
    net = PolicyValue()
    model = DDP(net)
    opt = torch.optim.Adam(net.parameters(), lr=h.lr)
    env = Docking(h.envs, seed=h.seed + 1 + rank, horizon=h.horizon)
    rng = torch.Generator().manual_seed(h.seed + 1000 + rank)
    norm = RunningNorm(8)
    norm.absorb(env.reset())
    for it in range(h.iterations):
        raw, obs, act, logp, adv, ret, score = collect(env, net, norm, h, rng)
        norm.absorb(raw)
        adv = standardise(adv)
        for _ in range(h.epochs):
            for pick in torch.randperm(len(obs), generator=rng).chunk(h.minibatches):
                mu, std, value = model(obs[pick])
                dist_now = torch.distributions.Normal(mu, std)
                ratio = (dist_now.log_prob(act[pick]).sum(1) - logp[pick]).exp()
                gain = torch.min(ratio * adv[pick], ratio.clamp(1 - h.clip, 1 + h.clip) * adv[pick])
                loss = -gain.mean() + 0.1 * (value - ret[pick]).pow(2).mean() - 0.001 * std.log().sum(1).mean()
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
        dist.all_reduce(score)
        if rank == 0 and it % 2 == 0:
            print(f"iteration {it} return {score.item() / world:.3f} std {net.log_std.exp().mean():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
