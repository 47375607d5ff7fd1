from collections import deque

import torch


class ActivationMonitor:
    """Keeps an eye on layer statistics during training."""

    def __init__(self, model, kinds, window=10):
        self.window = window
        self.records = {}
        self.handles = []
        for name, mod in model.named_modules():
            if isinstance(mod, kinds):
                self.records[name] = deque(maxlen=window)
                self.handles.append(mod.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def fn(module, inputs, output):
            if module.training:
                act = output.detach()
                self.records[name].append((act.mean(), (act <= 0).float().mean()))
        return fn

    @torch.no_grad()
    def summary(self):
        out = {}
        for name, acts in self.records.items():
            mean = torch.stack([m for m, _ in acts]).mean().item()
            dead = torch.stack([d for _, d in acts]).mean().item()
            out[name] = (mean, dead)
        return out

    def close(self):
        for h in self.handles:
            h.remove()
