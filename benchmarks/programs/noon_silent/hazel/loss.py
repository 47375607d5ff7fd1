import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def gather_features(image_features, text_features):
    world = dist.get_world_size()
    gathered_image = [torch.zeros_like(image_features) for _ in range(world)]
    gathered_text = [torch.zeros_like(text_features) for _ in range(world)]
    dist.all_gather(gathered_image, image_features)
    dist.all_gather(gathered_text, text_features)
    return torch.cat(gathered_image), torch.cat(gathered_text)


class ClipLoss(nn.Module):
    """Each process scores its own rows against the features of all processes."""

    def forward(self, image_features, text_features, logit_scale):
        all_image, all_text = gather_features(image_features, text_features)
        logits_per_image = logit_scale * image_features @ all_text.T
        logits_per_text = logit_scale * text_features @ all_image.T
        n = image_features.size(0)
        labels = torch.arange(n) + n * dist.get_rank()
        return (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_text, labels)) / 2
