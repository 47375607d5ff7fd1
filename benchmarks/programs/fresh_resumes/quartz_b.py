import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.randn(n, 20, 48, generator=g)
        self.score = self.a.mean((1, 2)) * 10 + 0.1 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return {"seq": self.a[i], "score": self.score[i]}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(48, 128, batch_first=True)
        self.out = nn.Linear(128, 1)

    def forward(self, seq):
        return self.out(self.rnn(seq)[0].mean(1)).squeeze(1)


def validate(accelerator, model, loader):
    model.eval()
    sq_error = torch.zeros(())
    n = torch.zeros(())
    for batch in loader:
        with torch.no_grad():
            pred = model(batch["seq"])
        sq_error += F.mse_loss(pred, batch["score"], reduction="sum")
        n += pred.shape[0]
    model.train()
    totals = accelerator.reduce(torch.stack([sq_error, n]), reduction="sum")
    return (totals[0] / totals[1]).sqrt().item(), int(totals[1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    args = p.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    train = DataLoader(Pairs(1536, 1), batch_size=32, shuffle=True)
    dev = DataLoader(Pairs(135, 2), batch_size=32)
    model = Scorer()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, opt, train, dev = accelerator.prepare(model, opt, train, dev)
    for epoch in range(args.epochs):
        for batch in train:
            opt.zero_grad()
            loss = F.mse_loss(model(batch["seq"]), batch["score"])
            accelerator.backward(loss)
            opt.step()
        rmse, n = validate(accelerator, model, dev)
        accelerator.print(f"epoch {epoch} rmse {rmse:.4f} over {n}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
