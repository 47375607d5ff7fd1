"""Wrappers around the model: parallelism, EMA of the loss, and a uniform training interface."""
import contextlib

import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TrainableModel(nn.Module):
    """Adds a loss and a running loss average to any network."""

    def __init__(self, net, loss_fn, beta=0.9):
        super().__init__()
        self.net, self.loss_fn, self.beta = net, loss_fn, beta
        self.smooth = None

    def forward(self, batch):
        x, y = batch
        loss = self.loss_fn(self.net(x), y)
        v = loss.item()
        self.smooth = v if self.smooth is None else self.beta * self.smooth + (1 - self.beta) * v
        return loss


def parallelise(net):
    return DDP(net)


def accumulation_context(model, last):
    """No gradient exchange until the last micro-batch, where the model supports that."""
    if last or not hasattr(model, "no_sync"):
        return contextlib.nullcontext()
    return model.no_sync()
