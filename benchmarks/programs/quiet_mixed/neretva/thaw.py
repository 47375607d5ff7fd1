import torch
from torch.nn.parallel import DistributedDataParallel


class Thawer:
    """Head first, then one more part of the backbone per epoch, from top to bottom."""

    def __init__(self, net, lr, decay):
        self.net = net
        self.lr, self.decay = lr, decay
        net.requires_grad_(False)
        net.head.requires_grad_(True)
        self.optim = torch.optim.Adam(net.head.parameters(), lr=lr)
        self.model = DistributedDataParallel(net)
        self.parts = list(reversed(net.parts))

    def stage(self, epoch):
        if 0 < epoch <= len(self.parts):
            part = self.parts[epoch - 1]
            part.requires_grad_(True)
            self.optim.add_param_group({"params": list(part.parameters()), "lr": self.lr * self.decay ** epoch})
            del self.model
            self.model = DistributedDataParallel(self.net)
        return self.model, self.optim
