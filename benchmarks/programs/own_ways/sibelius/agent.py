import torch
import torch.distributed as dist
from torch import nn


class RunningNorm:
    """Keeps mean and variance of everything it has seen."""

    def __init__(self, dim, clip=8.0):
        self.mean = torch.zeros(dim, dtype=torch.float64)
        self.var = torch.ones(dim, dtype=torch.float64)
        self.count = 1e-4
        self.clip = clip

    def update(self, batch):
        batch = batch.double()
        n = batch.shape[0]
        sums = torch.cat([batch.sum(0), batch.pow(2).sum(0), torch.tensor([float(n)])])
        dist.all_reduce(sums)
        dim, n = batch.shape[1], sums[-1].item()
        mean = sums[:dim] / n
        var = (sums[dim:-1] / n - mean ** 2).clamp(min=0)
        self.merge(mean, var, n)

    def merge(self, mean, var, n):
        delta = mean - self.mean
        total = self.count + n
        m2 = self.var * self.count + var * n + delta ** 2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var, self.count = m2 / total, total

    def __call__(self, x):
        z = (x.double() - self.mean) / (self.var + 1e-8).sqrt()
        return z.clamp(-self.clip, self.clip).float()

    def state_dict(self):
        return {"mean": self.mean, "var": self.var, "count": self.count}


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, width=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width),
                                nn.Tanh(), nn.Linear(width, act_dim))
        self.v = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.3))

    def dist(self, obs):
        return torch.distributions.Normal(self.pi(obs), self.log_std.exp())

    def value(self, obs):
        return self.v(obs).squeeze(-1)

    def losses(self, obs, act, old_logp, adv, ret, clip=0.2):
        d = self.dist(obs)
        logp = d.log_prob(act).sum(-1)
        ratio = (logp - old_logp).exp()
        policy = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
        value = 0.5 * (self.value(obs) - ret).pow(2).mean()
        return policy, value, d.entropy().sum(-1).mean()
