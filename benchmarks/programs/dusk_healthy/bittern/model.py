import torch.nn as nn


class PersonalizedNet(nn.Module):
    """Shared body, personal head (FedPer). BatchNorm layers stay local too (FedBN)."""

    def __init__(self, dim=256, hidden=256, classes=10):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))

    def shared(self):
        bn = {id(p) for m in self.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()}
        return [p for p in self.body.parameters() if id(p) not in bn]
