import torch
from torch import nn


class Policy(nn.Module):
    obs = 3
    actions = 3
    record = 3 + 1 + 1 + 1

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(self.obs, 32), nn.Tanh(), nn.Linear(32, self.actions))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def load_flat(module, vector):
    torch.nn.utils.vector_to_parameters(vector.clone(), module.parameters())
