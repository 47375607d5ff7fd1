import torch
import torch.distributed as dist


class SegmentationMeter:
    """Pixel accuracy and mean IoU over all ranks."""

    def __init__(self, classes):
        self.classes = classes
        self.reset()

    def reset(self):
        self.confusion = torch.zeros(self.classes, self.classes, dtype=torch.long)

    @torch.no_grad()
    def update(self, logits, target):
        pred = logits.argmax(1)
        index = target.flatten() * self.classes + pred.flatten()
        self.confusion += torch.bincount(index, minlength=self.classes ** 2).view(self.classes, self.classes)

    def compute(self):
        total = self.confusion.clone()
        dist.all_reduce(total)
        c = total.double()
        inter = c.diag()
        union = c.sum(0) + c.sum(1) - inter
        return {"acc": (inter.sum() / c.sum()).item(), "miou": (inter / union.clamp(min=1)).mean().item()}
