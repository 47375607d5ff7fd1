"""k-NN quality probe on intermediate features."""
import torch
import torch.nn.functional as F


class FeatureBank:
    """Records the normalised output of one layer for every forward pass."""

    def __init__(self, layer):
        self.features = []
        self.handle = layer.register_forward_hook(self._record)

    def _record(self, module, inputs, output):
        self.features.append(F.normalize(output.detach().flatten(2), dim=1))

    def stack(self):
        return torch.cat(self.features)

    def close(self):
        self.handle.remove()
        self.features = []


@torch.no_grad()
def knn_accuracy(model, layer, loader, accelerator, k=5):
    model.eval()
    bank = FeatureBank(layer)
    labels = []
    for images, target in loader:
        model(images)
        labels.append(target)
    feats = F.normalize(bank.stack().mean(2), dim=1)
    feats = accelerator.gather_for_metrics(feats)
    labels = accelerator.gather_for_metrics(torch.cat(labels))
    sims = feats @ feats.t()
    sims.fill_diagonal_(-1.0)
    votes = labels[sims.topk(k, dim=1).indices]
    model.train()
    return (votes.mode(dim=1).values == labels).float().mean().item()
