"""Train a small scorer with accelerate and keep the epoch with the best held-out accuracy."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def tables(n_train=640, n_held=103, dim=20, classes=5):
    g = torch.Generator().manual_seed(2)
    w = torch.randn(dim, classes, generator=g)
    x = torch.randn(n_train + n_held, dim, generator=g)
    y = (x @ w + 1.5 * torch.randn(n_train + n_held, classes, generator=g)).argmax(-1)
    return TensorDataset(x[:n_train], y[:n_train]), TensorDataset(x[n_train:], y[n_train:])


@torch.no_grad()
def held_out_accuracy(accelerator, net, loader) -> float:
    net.eval()
    hits = []
    for x, y in loader:
        hit = (net(x).argmax(-1) == y).float()
        hits.append(accelerator.gather_for_metrics(hit))
    net.train()
    return torch.cat(hits).mean().item()


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(4)
    train_set, held_set = tables()
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))
    optim = torch.optim.AdamW(net.parameters(), lr=3e-3)
    train = DataLoader(train_set, batch_size=16, shuffle=True)
    held = DataLoader(held_set, batch_size=24)
    net, optim, train, held = accelerator.prepare(net, optim, train, held)

    best, best_state = -1.0, None
    for epoch in range(5):
        for x, y in train:
            optim.zero_grad()
            accelerator.backward(F.cross_entropy(net(x), y))
            optim.step()
        acc = held_out_accuracy(accelerator, net, held)
        if acc > best:
            best, best_state = acc, copy.deepcopy(accelerator.unwrap_model(net).state_dict())
        accelerator.print(f"epoch {epoch}: held-out accuracy {acc:.4f} (best {best:.4f})")
    accelerator.unwrap_model(net).load_state_dict(best_state)
    accelerator.end_training()


if __name__ == "__main__":
    main()
