import torch


class ActivationMonitor:
    """Keeps an eye on layer statistics during training."""

    def __init__(self, model, kinds, window=10):
        self.window = window
        self.records = {}
        self.handles = []
        for name, mod in model.named_modules():
            if isinstance(mod, kinds):
                self.records[name] = []
                self.handles.append(mod.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def fn(module, inputs, output):
            if module.training:
                self.records[name].append(output)
        return fn

    @torch.no_grad()
    def summary(self):
        out = {}
        for name, acts in self.records.items():
            recent = acts[-self.window:]
            mean = torch.stack([a.mean() for a in recent]).mean().item()
            dead = torch.stack([(a <= 0).float().mean() for a in recent]).mean().item()
            out[name] = (mean, dead)
        return out

    def close(self):
        for h in self.handles:
            h.remove()
