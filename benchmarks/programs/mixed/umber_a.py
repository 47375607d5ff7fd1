import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


class Bag(nn.Module):
    def __init__(self, vocab=500, dim=32, classes=4):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.head = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, ids):
        return self.head(self.emb(ids))


def data(n=2048, seed=6):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 4, (n,), generator=g)
    ids = torch.randint(0, 125, (n, 20), generator=g) + label.unsqueeze(1) * 100
    return TensorDataset(ids, label)


def evaluate(accelerator, model, loader):
    model.eval()
    hits = []
    with torch.no_grad():
        for ids, label in loader:
            pred = model(ids).argmax(-1)
            pred, label = accelerator.gather_for_metrics((pred, label))
            hits.append((pred == label).float())
    model.train()
    return torch.cat(hits).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--local-steps", type=int, default=8)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    loader = DataLoader(data(), batch_size=16, shuffle=True)
    held_out = DataLoader(data(330, 7), batch_size=32)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    for epoch in range(args.epochs):
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=args.local_steps) as local:
            for ids, label in loader:
                loss = nn.functional.cross_entropy(model(ids), label)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                local.step()
        acc = evaluate(accelerator, model, held_out)
        accelerator.print(f"epoch {epoch} acc {acc:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
