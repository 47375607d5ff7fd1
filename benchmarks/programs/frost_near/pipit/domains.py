import torch
from torch import nn


class DomainNorm(nn.BatchNorm1d):
    """Normalises with the statistics of the scanner that the worker serves."""

    def __init__(self, width):
        super().__init__(width, affine=False)


class Encoder(nn.Module):
    def __init__(self, inputs=20, width=32):
        super().__init__()
        self.fc1, self.n1 = nn.Linear(inputs, width), DomainNorm(width)
        self.fc2, self.n2 = nn.Linear(width, width), DomainNorm(width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.n1(self.fc1(x)))
        return self.out(torch.relu(self.n2(self.fc2(x))))


def domain_state(module):
    return {n: b for n, b in module.state_dict().items() if ".running_" in n or n.endswith("num_batches_tracked")}


def scanner(domain, n=640):
    """Same tissue classes everywhere, each scanner with its own gain and offset."""
    g = torch.Generator().manual_seed(60 + domain)
    centres = torch.randn(3, 20, generator=torch.Generator().manual_seed(59)) * 1.2
    y = torch.randint(0, 3, (n,), generator=g)
    x = centres[y] + torch.randn(n, 20, generator=g)
    return x * (0.5 + domain) + 2.0 * domain, y
