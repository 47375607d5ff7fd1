import torch
from torch import nn
from torch.distributions import Normal


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Actor(nn.Module):
    def __init__(self, obs, act, hidden):
        super().__init__()
        self.body = mlp([obs, hidden, hidden])
        self.mean = nn.Linear(hidden, act)
        self.log_std = nn.Linear(hidden, act)

    def forward(self, obs):
        hidden = torch.relu(self.body(obs))
        return self.mean(hidden), self.log_std(hidden).clamp(-5, 1)

    def sample(self, obs):
        mean, log_std = self(obs)
        normal = Normal(mean, log_std.exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self, obs, act, hidden):
        super().__init__()
        self.left = mlp([obs + act, hidden, hidden, 1])
        self.right = mlp([obs + act, hidden, hidden, 1])

    def forward(self, obs, action):
        both = torch.cat([obs, action], -1)
        return self.left(both), self.right(both)
