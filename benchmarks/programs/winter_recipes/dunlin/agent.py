import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Normal


class RunningMeanStd:
    """Parallel-variance running moments of the observations."""

    def __init__(self, dim, eps=1e-4):
        self.mean, self.var, self.count = torch.zeros(dim), torch.ones(dim), eps

    def update(self, x):
        x = x.reshape(-1, x.shape[-1])
        moments = torch.cat([x.sum(0), (x ** 2).sum(0), x.new_tensor([len(x)])]).double()
        dist.all_reduce(moments)
        n, dim = moments[-1].item(), x.shape[-1]
        mean = moments[:dim] / n
        var = moments[dim:-1] / n - mean ** 2
        self.merge(mean.float(), var.float(), n)

    def merge(self, mean, var, n):
        delta, total = mean - self.mean, self.count + n
        m2 = self.var * self.count + var * n + delta ** 2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var, self.count = m2 / total, total

    def __call__(self, x):
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-5, 5)

    def state_dict(self):
        return {"mean": self.mean, "var": self.var, "count": self.count}


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, act_dim))
        self.v = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())

    def forward(self, obs, act):
        d = self.dist(obs)
        return d.log_prob(act).sum(-1), d.entropy().sum(-1), self.v(obs).squeeze(-1)
