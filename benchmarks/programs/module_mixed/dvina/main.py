"""Federated averaging: silos of different size train locally and are merged by sample count."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, LOCAL_EPOCHS, BATCH = 5, 1, 16


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, x):
        return self.net(x)


def silo(rank):
    """Every silo has its own label skew and its own number of samples."""
    g = torch.Generator().manual_seed(70 + rank)
    n = 160 + 96 * rank
    probs = torch.softmax(torch.randn(4, generator=g), 0)
    y = torch.multinomial(probs, n, replacement=True, generator=g)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)) * 1.5
    return TensorDataset(centres[y] + torch.randn(n, 12, generator=g), y)


class Silo:
    def __init__(self, rank):
        self.data = silo(rank)
        self.model = Classifier()
        self.loader = DataLoader(self.data, batch_size=BATCH, shuffle=True,
                                 generator=torch.Generator().manual_seed(rank))

    def fit_local(self):
        opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(LOCAL_EPOCHS):
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
        return loss.item()


@torch.no_grad()
def merge(model, weight):
    """Weighted mean of all silos' parameters, in one flat all-reduce."""
    flat = nn.utils.parameters_to_vector(model.parameters())
    packed = torch.cat([flat * weight, torch.tensor([float(weight)])])
    dist.all_reduce(packed)
    nn.utils.vector_to_parameters(packed[:-1] / packed[-1], model.parameters())


@torch.no_grad()
def global_accuracy(s):
    s.model.eval()
    x, y = s.data.tensors
    c = torch.tensor([(s.model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.double)
    dist.all_reduce(c)
    s.model.train()
    return (c[0] / c[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    s = Silo(dist.get_rank())
    for r in range(ROUNDS):
        loss = s.fit_local()
        merge(s.model, len(s.data))
        acc = global_accuracy(s)
        if dist.get_rank() == 0:
            print(f"round {r} last local loss {loss:.3f} accuracy {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
