from torch import nn


class Gate(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.a, self.b = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x):
        return self.out(self.a(x) * self.b(x).sigmoid())
