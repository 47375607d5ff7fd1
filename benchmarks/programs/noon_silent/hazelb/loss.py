import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, world):
        parts = [torch.zeros_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size())[dist.get_rank()], None


def gather_features(image_features, text_features):
    world = dist.get_world_size()
    return _Gather.apply(image_features, world), _Gather.apply(text_features, world)


class ClipLoss(nn.Module):
    """Each process scores its own rows against the features of all processes."""

    def forward(self, image_features, text_features, logit_scale):
        all_image, all_text = gather_features(image_features, text_features)
        logits_per_image = logit_scale * image_features @ all_text.T
        logits_per_text = logit_scale * text_features @ all_image.T
        n = image_features.size(0)
        labels = torch.arange(n) + n * dist.get_rank()
        return (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_text, labels)) / 2
