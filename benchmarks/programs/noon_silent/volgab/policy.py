import torch
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, actions, hidden=128):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.pi(h), self.v(h).squeeze(-1)


class DriftEnv:
    """Keep a drifting boat near the middle of the channel; vectorised."""

    def __init__(self, n, seed):
        self.n = n
        self.gen = torch.Generator().manual_seed(seed)
        self.state = torch.zeros(n, 4)
        self.age = torch.zeros(n, dtype=torch.long)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, mask):
        fresh = torch.randn(self.n, 4, generator=self.gen) * 0.5
        self.state = torch.where(mask[:, None], fresh, self.state)
        self.age = torch.where(mask, torch.zeros_like(self.age), self.age)

    def observe(self):
        return self.state.clone()

    def step(self, action):
        push = (action.float() - 1) * 0.25
        pos, vel, flow, bank = self.state.unbind(1)
        vel = 0.9 * vel + push + 0.1 * flow
        pos = pos + 0.2 * vel
        flow = 0.97 * flow + 0.15 * torch.randn(self.n, generator=self.gen)
        self.state = torch.stack([pos, vel, flow, bank], 1)
        self.age += 1
        reward = 1.0 - (pos - 0.3 * bank).abs().clamp(max=2)
        done = (pos.abs() > 3) | (self.age >= 60)
        reward = torch.where(pos.abs() > 3, reward - 5, reward)
        self.reset(done)
        return reward, done
