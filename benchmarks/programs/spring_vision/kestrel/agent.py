import torch
import torch.nn as nn
from torch.distributions import Normal


class Agent(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(),
                                   nn.Linear(hidden, act_dim))
        self.critic = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(),
                                    nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs):
        mu = self.actor(obs)
        return mu, self.log_std.expand_as(mu), self.critic(obs).squeeze(-1)

    @torch.no_grad()
    def act(self, obs):
        mu, log_std, v = self(obs)
        d = Normal(mu, log_std.exp())
        a = d.sample()
        return a, d.log_prob(a).sum(-1), v, mu, log_std


def gaussian_kl(mu0, log_std0, mu1, log_std1):
    var0, var1 = (2 * log_std0).exp(), (2 * log_std1).exp()
    return (log_std1 - log_std0 + (var0 + (mu0 - mu1) ** 2) / (2 * var1) - 0.5).sum(-1).mean()


class AdaptiveScheduler:
    def __init__(self, kl_threshold=0.008, min_lr=1e-5, max_lr=1e-2, factor=1.5):
        self.kl_threshold, self.min_lr, self.max_lr, self.factor = kl_threshold, min_lr, max_lr, factor

    def update(self, lr, kl):
        if kl > 2.0 * self.kl_threshold:
            return max(lr / self.factor, self.min_lr)
        if kl < 0.5 * self.kl_threshold:
            return min(lr * self.factor, self.max_lr)
        return lr


class PointMassVec:
    """Vectorised double integrators which have to come to rest at the origin."""

    obs_dim, act_dim = 6, 2

    def __init__(self, n, gen, horizon=64):
        self.n, self.gen, self.horizon = n, gen, horizon
        self.friction = 0.05 + 0.3 * torch.rand(n, 1, generator=gen)
        self.pos = torch.zeros(n, 2)
        self.vel = torch.zeros(n, 2)
        self.t = torch.randint(0, horizon, (n,), generator=gen)
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, mask):
        k = int(mask.sum())
        self.pos[mask] = 4 * torch.rand(k, 2, generator=self.gen) - 2
        self.vel[mask] = torch.randn(k, 2, generator=self.gen) * 0.3

    def obs(self):
        return torch.cat([self.pos, self.vel, self.friction, (self.t / self.horizon).unsqueeze(1)], 1)

    def step(self, act):
        act = act.clamp(-1, 1)
        self.vel = self.vel * (1 - self.friction) + 0.2 * act
        self.pos = self.pos + 0.2 * self.vel
        self.t += 1
        reward = 1.0 - self.pos.norm(dim=1).clamp(max=3) * 0.5 - 0.05 * act.pow(2).sum(1)
        done = self.t >= self.horizon
        if done.any():
            self.t[done] = 0
            self._reset(done)
        return self.obs(), reward, done.float()
