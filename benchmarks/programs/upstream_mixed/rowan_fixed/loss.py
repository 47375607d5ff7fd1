import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_gather_single_autograd


class PairLoss(nn.Module):
    """Symmetric contrastive loss: this process's rows against everybody's columns."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.3))

    def gather(self, features):
        return all_gather_single_autograd(features.contiguous(), 0, dist.group.WORLD)

    def forward(self, image, text):
        image, text = F.normalize(image, dim=1), F.normalize(text, dim=1)
        images, texts = self.gather(image), self.gather(text)
        scale = self.scale.exp()
        labels = torch.arange(len(image)) + dist.get_rank() * len(image)
        return (F.cross_entropy(scale * image @ texts.t(), labels)
                + F.cross_entropy(scale * text @ images.t(), labels)) / 2
