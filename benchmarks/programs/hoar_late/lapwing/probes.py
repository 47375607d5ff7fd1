import torch


class ActivationProbe:
    """Collects mean absolute activations while it is attached."""

    def __init__(self, model, kinds):
        self.model = model
        self.kinds = kinds
        self.handles = []
        self.sums = {}
        self.calls = {}

    def _hook(self, name):
        def fn(module, inputs, output):
            self.sums[name] = self.sums.get(name, 0.0) + output.detach().abs().mean()
            self.calls[name] = self.calls.get(name, 0) + 1
        return fn

    def __enter__(self):
        for name, m in self.model.named_modules():
            if isinstance(m, self.kinds):
                self.handles.append(m.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *exc):
        for h in self.handles:
            h.remove()
        self.handles.clear()

    def means(self):
        names = sorted(self.sums)
        return names, torch.stack([self.sums[n] / self.calls[n] for n in names])
