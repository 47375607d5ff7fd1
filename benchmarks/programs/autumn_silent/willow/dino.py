import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Projector(nn.Module):
    def __init__(self, in_dim, hidden, bottleneck, out_dim):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(in_dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.prototypes = nn.Linear(bottleneck, out_dim, bias=False)

    def forward(self, x):
        return self.prototypes(F.normalize(self.mlp(x), dim=-1))


class SelfDistillationLoss(nn.Module):
    def __init__(self, out_dim, student_temp=0.1, teacher_temp=0.05, center_momentum=0.9):
        super().__init__()
        self.student_temp = student_temp
        self.teacher_temp = teacher_temp
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_out, teacher_out, n_views):
        student = (student_out / self.student_temp).chunk(n_views)
        teacher = F.softmax((teacher_out - self.center) / self.teacher_temp, dim=-1).detach().chunk(2)
        total, terms = 0.0, 0
        for i, q in enumerate(teacher):
            for j, s in enumerate(student):
                if i == j:
                    continue
                total = total + torch.sum(-q * F.log_softmax(s, dim=-1), dim=-1).mean()
                terms += 1
        self.update_center(teacher_out)
        return total / terms

    @torch.no_grad()
    def update_center(self, teacher_out):
        batch_center = teacher_out.sum(dim=0, keepdim=True)
        dist.all_reduce(batch_center)
        batch_center = batch_center / len(teacher_out)
        self.center.mul_(self.center_momentum).add_(batch_center, alpha=1 - self.center_momentum)


class EMATeacher:
    def __init__(self, student, base_momentum):
        self.model = copy.deepcopy(student)
        self.model.requires_grad_(False)
        self.base = base_momentum

    @torch.no_grad()
    def update(self, student, progress):
        m = 1 - (1 - self.base) * (1 - progress)
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.mul_(m).add_(s, alpha=1 - m)
