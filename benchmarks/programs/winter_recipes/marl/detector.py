import torch
import torch.nn as nn
import torch.nn.functional as F


class CenterDetector(nn.Module):
    """Anchor-free detector with stride 8: class heat map plus box distances."""

    stride = 8

    def __init__(self, classes, width=32):
        super().__init__()
        chans = [3, width, width, 2 * width]
        self.body = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(8, b), nn.ReLU())
                for a, b in zip(chans, chans[1:])
            ]
        )
        self.neck = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())
        self.cls = nn.Conv2d(2 * width, classes, 1)
        self.box = nn.Conv2d(2 * width, 4, 1)
        nn.init.constant_(self.cls.bias, -3.0)

    def forward(self, images, targets):
        f = self.neck(self.body(images))
        return self.losses(self.cls(f), self.box(f), targets)

    def losses(self, logits, dists, targets):
        heat = torch.zeros_like(logits)
        pred, goal = [], []
        for b, t in enumerate(targets):
            for box, label in zip(t["boxes"], t["labels"]):
                cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
                j, i = int(cx) // self.stride, int(cy) // self.stride
                heat[b, label, i, j] = 1.0
                pred.append(dists[b, :, i, j])
                px, py = (j + 0.5) * self.stride, (i + 0.5) * self.stride
                goal.append(torch.stack([px - box[0], py - box[1], box[2] - px, box[3] - py]) / self.stride)
        p = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, heat, reduction="none")
        focal = ((1 - (p * heat + (1 - p) * (1 - heat))) ** 2 * ce).sum() / max(1, len(goal))
        return {"cls": focal, "box": F.smooth_l1_loss(torch.stack(pred), torch.stack(goal))}
