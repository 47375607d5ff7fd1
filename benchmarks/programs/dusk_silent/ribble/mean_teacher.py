import copy

import torch
import torch.nn as nn


class MeanTeacher(nn.Module):
    """Exponential moving average of a student, used for targets and for evaluation."""

    def __init__(self, student, decay=0.99):
        super().__init__()
        self.net = copy.deepcopy(student).requires_grad_(False).eval()
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, student):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for t, s in zip(self.net.parameters(), student.parameters()):
            t.lerp_(s, 1 - decay)
        for t, s in zip(self.net.buffers(), student.buffers()):
            t.copy_(s)

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)
