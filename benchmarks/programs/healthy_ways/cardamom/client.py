import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Client:
    """Holds private data and trains a copy of the server model for a few local epochs."""

    def __init__(self, rank, x, y, batch, seed):
        self.rank = rank
        gen = torch.Generator().manual_seed(seed)
        self.data = TensorDataset(x, y)
        self.loader = DataLoader(self.data, batch_size=batch, shuffle=True, generator=gen)

    @property
    def size(self):
        return len(self.data)

    def fit(self, model, epochs, lr, mu):
        anchor = [p.detach().clone() for p in model.parameters()]
        opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        model.train()
        seen, total = 0, 0.0
        for _ in range(epochs):
            for x, y in self.loader:
                loss = F.cross_entropy(model(x), y)
                prox = sum((p - a).pow(2).sum() for p, a in zip(model.parameters(), anchor))
                opt.zero_grad(set_to_none=True)
                (loss + 0.5 * mu * prox).backward()
                opt.step()
                seen += len(y)
                total += loss.item() * len(y)
        return total / seen, seen
