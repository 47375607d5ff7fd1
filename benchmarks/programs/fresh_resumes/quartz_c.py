import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_sets(n_train, n_eval):
    g = torch.Generator().manual_seed(23)
    ids = torch.randint(0, 500, (n_train + n_eval, 40), generator=g)
    label = (ids.float().mean(1) > 249.5).long()
    return TensorDataset(ids[:n_train], label[:n_train]), TensorDataset(ids[n_train:], label[n_train:])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(500, 192)
        self.ff = nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 2))

    def forward(self, ids):
        return self.ff(self.emb(ids)).mean(1)


class F1:
    def __init__(self):
        self.pred, self.ref = [], []

    def add_batch(self, pred, ref):
        self.pred.append(pred)
        self.ref.append(ref)

    def compute(self):
        p, r = torch.cat(self.pred), torch.cat(self.ref)
        tp = ((p == 1) & (r == 1)).sum()
        return {"f1": (2 * tp / ((p == 1).sum() + (r == 1).sum()).clamp(min=1)).item(), "n": len(p)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    args = p.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(5)
    train_set, eval_set = build_sets(2048, 171)
    model = Bag()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_loader = DataLoader(train_set, batch_size=args.batch, shuffle=True)
    eval_loader = DataLoader(eval_set, batch_size=args.batch)
    model, opt, train_loader, eval_loader = accelerator.prepare(model, opt, train_loader, eval_loader)
    for epoch in range(args.epochs):
        model.train()
        for ids, label in train_loader:
            opt.zero_grad()
            accelerator.backward(F.cross_entropy(model(ids), label))
            opt.step()
        model.eval()
        metric = F1()
        seen = 0
        for step, (ids, label) in enumerate(eval_loader):
            with torch.no_grad():
                pred = model(ids).argmax(1)
            pred, label = accelerator.gather((pred, label))
            if step == len(eval_loader) - 1:
                pred = pred[: len(eval_loader.dataset) - seen]
                label = label[: len(eval_loader.dataset) - seen]
            else:
                seen += len(label)
            metric.add_batch(pred, label)
        accelerator.print(epoch, metric.compute())
    accelerator.end_training()


if __name__ == "__main__":
    main()
