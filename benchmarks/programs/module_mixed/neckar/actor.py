import torch
import torch.nn as nn
import torch.nn.functional as F


class Tracker(nn.Module):
    def __init__(self, d=384):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )
        self.box = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, 4))
        self.iou = nn.Linear(d, 1)

    def forward(self, img):
        f = self.backbone(img)
        return self.box(f), self.iou(f).squeeze(-1)


def render(box, size=160, sharp=40.0):
    """A soft mask of each box (cx, cy, w, h)."""
    ax = torch.linspace(0, 1, size)
    edge = lambda c, w: torch.sigmoid(sharp * (w[:, None] / 2 - (ax - c[:, None]).abs()))
    return edge(box[:, 1], box[:, 3])[:, :, None] * edge(box[:, 0], box[:, 2])[:, None, :]


def overlap(pred, true):
    a, b = render(pred), render(true)
    inter = (a * b).sum((1, 2))
    return (inter / (a + b - a * b).sum((1, 2))).mean()


class TrackActor:
    def __init__(self, net, weight):
        self.net, self.weight = net, weight

    def __call__(self, data):
        box, iou = self.net(data["image"])
        loss_box = F.l1_loss(box, data["box"])
        loss_iou = F.mse_loss(iou, data["iou"])
        loss = self.weight["box"] * loss_box + self.weight["iou"] * loss_iou
        stats = {
            "Loss/total": loss.item(),
            "Loss/box": loss_box.item(),
            "Loss/iou": loss_iou.item(),
            "Stats/overlap": overlap(box, data["box"]),
        }
        return loss, stats
