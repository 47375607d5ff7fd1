import torch
import torch.distributed as dist


class SegmentationMeter:
    """Collects predictions during training and reports mean IoU over all processes."""

    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.reset()

    def reset(self):
        self.conf = torch.zeros(self.num_classes, self.num_classes, dtype=torch.long)
        self.steps = 0

    def update(self, logits, masks):
        self.steps += 1
        self.conf += self._confusion(logits.detach(), masks)

    def _confusion(self, logits, masks):
        k = self.num_classes
        pred = logits.argmax(1).flatten()
        return torch.bincount(masks.flatten() * k + pred, minlength=k * k).view(k, k)

    def compute(self):
        conf = self.conf.clone()
        self.reset()
        dist.all_reduce(conf)
        inter = conf.diag().float()
        union = conf.sum(0) + conf.sum(1) - conf.diag()
        return (inter / union.clamp(min=1)).mean().item()
