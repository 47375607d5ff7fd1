import torch.nn as nn


class Student(nn.Module):
    def __init__(self, dim=30, classes=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x))


def teacher(dim=30, classes=5):
    return nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes))


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)
