import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment


def to_xyxy(b):
    c, s = b[..., :2], b[..., 2:]
    return torch.cat([c - s / 2, c + s / 2], -1)


def giou_matrix(a, b):
    a, b = to_xyxy(a), to_xyxy(b)
    area = lambda t: (t[:, 2] - t[:, 0]).clamp(min=0) * (t[:, 3] - t[:, 1]).clamp(min=0)
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = area(a)[:, None] + area(b)[None] - inter
    hull = (torch.max(a[:, None, 2:], b[None, :, 2:]) - torch.min(a[:, None, :2], b[None, :, :2])).clamp(min=0).prod(-1)
    iou = inter / union.clamp(min=1e-6)
    return iou, iou - (hull - union) / hull.clamp(min=1e-6)


class HungarianMatcher:
    def __init__(self, c_cls, c_box, c_giou):
        self.c = (c_cls, c_box, c_giou)

    @staticmethod
    def pair_iou(a, b):
        return giou_matrix(a, b)[0].diagonal()

    @torch.no_grad()
    def __call__(self, out, targets):
        res = []
        prob = out["logits"].softmax(-1)
        for b, t in enumerate(targets):
            cost = -self.c[0] * prob[b][:, t["labels"]] + self.c[1] * torch.cdist(out["boxes"][b], t["boxes"], p=1)
            cost = cost - self.c[2] * giou_matrix(out["boxes"][b], t["boxes"])[1]
            i, j = linear_sum_assignment(cost.numpy())
            res.append((torch.as_tensor(i), torch.as_tensor(j)))
        return res


class SetCriterion(nn.Module):
    def __init__(self, num_classes, matcher, eos_coef, weight_dict):
        super().__init__()
        self.num_classes, self.matcher, self.weight_dict = num_classes, matcher, weight_dict
        w = torch.ones(num_classes + 1)
        w[-1] = eos_coef
        self.register_buffer("empty_weight", w)

    def labels(self, out, targets, indices):
        tgt = torch.full(out["logits"].shape[:2], self.num_classes)
        for b, (i, j) in enumerate(indices):
            tgt[b, i] = targets[b]["labels"][j]
        return {"loss_ce": F.cross_entropy(out["logits"].flatten(0, 1), tgt.flatten(), self.empty_weight)}

    def boxes(self, out, targets, indices, num_boxes):
        src = torch.cat([out["boxes"][b, i] for b, (i, _) in enumerate(indices)])
        tgt = torch.cat([targets[b]["boxes"][j] for b, (_, j) in enumerate(indices)])
        l1 = F.l1_loss(src, tgt, reduction="sum") / num_boxes
        giou = (1 - giou_matrix(src, tgt)[1].diagonal()).sum() / num_boxes
        return {"loss_bbox": l1, "loss_giou": giou}

    def forward(self, out, targets):
        indices = self.matcher(out, targets)
        num_boxes = torch.as_tensor([sum(len(t["labels"]) for t in targets)], dtype=torch.float)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(num_boxes)
        num_boxes = torch.clamp(num_boxes, min=1).item()
        return {**self.labels(out, targets, indices), **self.boxes(out, targets, indices, num_boxes)}
