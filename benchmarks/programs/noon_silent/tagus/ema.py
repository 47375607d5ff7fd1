import torch


class EMAHelper:
    """Keeps smoothed weights for sampling."""

    def __init__(self, mu=0.999):
        self.mu = mu
        self.shadow = {}

    def register(self, module):
        for name, param in module.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    @torch.no_grad()
    def update(self, module):
        for name, param in module.named_parameters():
            if param.requires_grad and name in self.shadow:
                self.shadow[name].mul_(self.mu).add_(param.data, alpha=1 - self.mu)

    def ema(self, module):
        for name, param in module.named_parameters():
            if name in self.shadow:
                param.data.copy_(self.shadow[name])

    def state_dict(self):
        return self.shadow
