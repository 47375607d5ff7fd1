import torch


class EMA:
    """Shadow weights with a warmed-up decay."""

    def __init__(self, net: torch.nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.shadow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def update(self, net):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for s, p in zip(self.shadow, net.parameters()):
            s.lerp_(p, 1 - d)

    @torch.no_grad()
    def copy_to(self, net):
        for s, p in zip(self.shadow, net.parameters()):
            p.copy_(s)
