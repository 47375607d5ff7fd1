import torch


class FeatureSpectrum:
    """Effective rank of the activations of the watched layers over a pass through the model."""

    def __init__(self, layers):
        self.ranks = {name: [] for name in layers}
        self.handles = [m.register_forward_hook(self._make(name)) for name, m in layers.items()]

    def _make(self, name):
        def hook(module, inputs, output):
            z = output.detach().flatten(0, -2)
            z = z - z.mean(0)
            cov = z.t() @ z / len(z)
            p = torch.linalg.eigvalsh(cov).clamp(min=1e-9)
            p = p / p.sum()
            self.ranks[name].append(torch.exp(-(p * p.log()).sum()).item())
        return hook

    def summary(self):
        return {k: sum(v) / max(1, len(v)) for k, v in self.ranks.items()}

    def detach(self):
        for h in self.handles:
            h.remove()
        self.handles.clear()
