import torch


class ActivationProbe:
    """Watches the activation scale of chosen layers."""

    def __init__(self, model, kinds):
        self.store = {}
        self.handles = []
        for name, mod in model.named_modules():
            if isinstance(mod, kinds):
                self.store[name] = []
                self.handles.append(mod.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def hook(mod, inputs, output):
            self.store[name].append(output)
        return hook

    def summary(self):
        return {k: round(v[-1].abs().mean().item(), 4) for k, v in self.store.items()}

    def close(self):
        for h in self.handles:
            h.remove()
