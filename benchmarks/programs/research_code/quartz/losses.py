import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class SelfDistillLoss(nn.Module):
    def __init__(self, out_dim, n_crops, warmup_epochs, epochs, t_start=0.04, t_end=0.05, s_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.s_temp = s_temp
        self.n_crops = n_crops
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))
        ramp = torch.linspace(t_start, t_end, warmup_epochs).tolist()
        self.t_temp = ramp + [t_end] * max(0, epochs - warmup_epochs)

    def forward(self, student_out, teacher_out, epoch):
        s = (student_out / self.s_temp).chunk(self.n_crops)
        t = F.softmax((teacher_out - self.center) / self.t_temp[epoch], dim=-1).detach().chunk(2)
        loss, terms = 0.0, 0
        for i, q in enumerate(t):
            for j, v in enumerate(s):
                if i == j:
                    continue
                loss = loss + torch.sum(-q * F.log_softmax(v, dim=-1), dim=-1).mean()
                terms += 1
        self.update_center(teacher_out)
        return loss / terms

    @torch.no_grad()
    def update_center(self, teacher_out):
        batch_center = teacher_out.sum(dim=0, keepdim=True)
        batch_center = batch_center / len(teacher_out)
        self.center.mul_(self.center_momentum).add_(batch_center, alpha=1 - self.center_momentum)
