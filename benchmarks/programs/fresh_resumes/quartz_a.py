import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_sets():
    g = torch.Generator().manual_seed(19)
    w = torch.randn(160, 7, generator=g)
    x = torch.randn(4096 + 205, 160, generator=g)
    y = (x @ w + torch.randn(len(x), 7, generator=g)).argmax(1)
    return TensorDataset(x[:4096], y[:4096]), TensorDataset(x[4096:], y[4096:])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(160, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 7))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    right = torch.zeros((), dtype=torch.long)
    count = torch.zeros((), dtype=torch.long)
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum()
        count += len(y)
    model.train()
    right = accelerator.reduce(right, reduction="sum")
    count = accelerator.reduce(count, reduction="sum")
    return right.item(), count.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=64)
    args = p.parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    set_seed(1)
    train_set, val_set = make_sets()
    model = Classifier()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    train = DataLoader(train_set, batch_size=args.batch, shuffle=True)
    val = DataLoader(val_set, batch_size=args.batch)
    model, opt, train, val = accelerator.prepare(model, opt, train, val)
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(train):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            opt.step()
            if step % 16 == 15:
                shown = accelerator.gather(loss.detach()).mean()
                accelerator.print(epoch, step, round(shown.item(), 4))
        right, count = evaluate(accelerator, model, val)
        accelerator.print("epoch", epoch, "accuracy", right / count, "of", count)
    accelerator.end_training()


if __name__ == "__main__":
    main()
