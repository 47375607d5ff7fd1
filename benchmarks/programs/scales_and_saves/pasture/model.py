import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, bands, width, prototypes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(bands, width), nn.GELU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.GELU())
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(width, prototypes, bias=False))

    def forward(self, x):
        return self.head(F.normalize(self.body(x), dim=-1))


class Teacher:
    """Slow copy of the student; gives centred, sharpened targets."""

    def __init__(self, student, decay=0.99, temp=0.07, center_decay=0.9):
        self.net = copy.deepcopy(student)
        self.net.eval()
        self.decay, self.temp, self.center_decay = decay, temp, center_decay
        self.center = None

    @torch.no_grad()
    def targets(self, views):
        out = [self.net(v) for v in views]
        if self.center is None:
            self.center = torch.zeros_like(out[0][:1])
        probs = [F.softmax((o - self.center) / self.temp, dim=-1).detach() for o in out]
        self._move_center(torch.cat(out))
        return probs

    def _move_center(self, out):
        batch = out.mean(0, keepdim=True)
        total = batch.detach().clone()
        dist.all_reduce(total)
        # own batch mean, corrected by what the others saw
        batch = batch + (total / dist.get_world_size() - batch.detach())
        self.center = self.center * self.center_decay + batch * (1 - self.center_decay)

    @torch.no_grad()
    def follow(self, student):
        for slow, fast in zip(self.net.parameters(), student.parameters()):
            slow.lerp_(fast, 1 - self.decay)


def dino_loss(student_out, teacher_probs, temp=0.1):
    total, terms = 0.0, 0
    for i, q in enumerate(teacher_probs):
        for j, s in enumerate(student_out):
            if i == j:
                continue
            total = total - (q * F.log_softmax(s / temp, dim=-1)).sum(-1).mean()
            terms += 1
    return total / terms
