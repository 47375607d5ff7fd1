import torch


class FeatureProbe:
    """Collects intermediate activations of the named layers for a reference batch."""

    def __init__(self, encoder, layers):
        self.encoder = encoder
        self.layers = set(layers)
        self.features = {}
        self.handles = []
        for name, module in encoder.named_modules():
            if name in self.layers:
                self.handles.append(module.register_forward_hook(self._make(name)))

    def _make(self, name):
        def hook(module, args, output):
            self.features[name] = output.detach().clone()
        return hook

    def run(self, batch):
        was_training = self.encoder.training
        self.encoder.eval()
        with torch.no_grad():
            self.encoder(batch)
        self.encoder.train(was_training)
        return dict(self.features)


def effective_rank(feature):
    flat = feature.flatten(2).mean(-1) if feature.dim() == 4 else feature
    s = torch.linalg.svdvals(flat - flat.mean(0))
    p = s / s.sum().clamp(min=1e-8)
    return torch.exp(-(p * (p + 1e-12).log()).sum()).item()


def probe_layers(encoder, batch, layers):
    probe = FeatureProbe(encoder, layers)
    features = probe.run(batch)
    return {name: effective_rank(f) for name, f in features.items()}
