import torch.nn as nn


def build():
    return nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(),
                         nn.Linear(40, 4))
