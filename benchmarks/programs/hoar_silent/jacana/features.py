import torch


class FeatureExtractor:
    """Collects the outputs of named layers: `FeatureExtractor(net, names).run(x)`."""

    def __init__(self, net, names):
        self.net = net
        self.features = {n: [] for n in names}
        modules = dict(net.named_modules())
        self.handles = [modules[n].register_forward_hook(self._hook(n)) for n in names]

    def _hook(self, name):
        def fn(module, inputs, output):
            self.features[name].append(output.detach())
        return fn

    @torch.no_grad()
    def run(self, x):
        self.net(x)
        return {n: torch.cat(v) for n, v in self.features.items()}


def effective_rank(f):
    s = torch.linalg.svdvals(f - f.mean(0, keepdim=True))
    p = s / s.sum()
    return torch.exp(-(p * (p + 1e-9).log()).sum())


def collapse_score(net, names, x):
    feats = FeatureExtractor(net, names).run(x)
    return torch.stack([effective_rank(f.flatten(1)[:, :64]) for f in feats.values()])
