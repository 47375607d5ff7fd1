import torch
from torch import nn


class GridDetector(nn.Module):
    """One objectness, one box and one mask vector per cell of an 8x8 grid."""

    def __init__(self, width=24, mask=16):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU())
        self.head = nn.Conv2d(2 * width, 1 + 4 + mask, 1)
        self.mask = mask

    def forward(self, images, targets):
        out = self.head(self.trunk(images)).permute(0, 2, 3, 1)
        obj, box, mask = out.split([1, 4, self.mask], dim=-1)
        losses = {"loss_obj": nn.functional.binary_cross_entropy_with_logits(obj[..., 0], targets["cells"])}
        hit = targets["cells"] > 0.5
        losses["loss_box"] = nn.functional.smooth_l1_loss(box[hit], targets["boxes"][hit])
        with_mask = targets["has_mask"]
        picked = mask[with_mask][hit[with_mask]]
        wanted = targets["masks"][with_mask][hit[with_mask]]
        total = losses["loss_obj"] + losses["loss_box"] + 0.0 * mask.sum()
        if with_mask.any():
            losses["loss_mask"] = nn.functional.binary_cross_entropy_with_logits(picked, wanted)
            total = total + losses["loss_mask"]
        return total, losses
