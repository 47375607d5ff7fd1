import torch
import torch.nn as nn

from normalizer import RunningNorm


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, act_dim)
        self.value = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs):
        h = self.body(obs)
        return self.mu(h), self.log_std.exp().expand(h.size(0), -1), self.value(h).squeeze(-1)


class Agent:
    def __init__(self, obs_dim, act_dim):
        self.net = nn.parallel.DistributedDataParallel(ActorCritic(obs_dim, act_dim))
        self.norm = RunningNorm(obs_dim)

    @torch.no_grad()
    def act(self, obs):
        mu, std, value = self.net.module(self.norm(obs))
        d = torch.distributions.Normal(mu, std)
        a = d.sample()
        return a, d.log_prob(a).sum(-1), value

    def evaluate(self, obs, act):
        mu, std, value = self.net(self.norm(obs))
        d = torch.distributions.Normal(mu, std)
        return d.log_prob(act).sum(-1), d.entropy().sum(-1), value

    def state(self):
        return {"net": self.net.module.state_dict(), "norm": self.norm.state_dict()}
