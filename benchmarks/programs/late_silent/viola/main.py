"""Metric learning with accelerate: proxy based loss over generated identities."""
import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def identities(n_ids, per_id, dim, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(n_ids, dim, generator=g)
    x = centre.repeat_interleave(per_id, 0) + 0.9 * torch.randn(n_ids * per_id, dim, generator=g)
    x = torch.cat([x, torch.sin(3 * x)], 1)
    return x, torch.arange(n_ids).repeat_interleave(per_id)


class Backbone(nn.Sequential):
    def __init__(self, in_dim, out_dim):
        super().__init__(nn.Linear(in_dim, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU(),
                         nn.Linear(96, out_dim))


class ProxyAnchor(nn.Module):
    """Kim et al. 2020: every class has a learned proxy."""

    def __init__(self, n_classes, dim, margin=0.1, alpha=16.0):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(n_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")
        self.margin, self.alpha = margin, alpha

    def forward(self, z, labels):
        cos = F.normalize(z, dim=1) @ F.normalize(self.proxies, dim=1).t()
        pos_mask = F.one_hot(labels, cos.shape[1]).bool()
        pos = torch.where(pos_mask, torch.exp(-self.alpha * (cos - self.margin)), 0.0).sum(0)
        neg = torch.where(pos_mask, 0.0, torch.exp(self.alpha * (cos + self.margin))).sum(0)
        seen = pos_mask.any(0)
        return torch.log1p(pos)[seen].mean() + torch.log1p(neg).mean()


@torch.no_grad()
def nearest_neighbour_accuracy(accelerator, model, loader):
    model.eval()
    zs, ys = [], []
    for x, y in loader:
        z, y = accelerator.gather_for_metrics((F.normalize(model(x), dim=1), y))
        zs.append(z)
        ys.append(y)
    z, y = torch.cat(zs), torch.cat(ys)
    sim = z @ z.t()
    sim.fill_diagonal_(-2)
    model.train()
    return (y[sim.argmax(1)] == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--ids", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=8)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    train = TensorDataset(*identities(args.ids, 32, 10, args.seed))
    test = TensorDataset(*identities(args.ids // 2, 10, 10, args.seed + 1))
    model = Backbone(20, 16)
    criterion = ProxyAnchor(args.ids, 16)
    optimizer = torch.optim.AdamW([
        {"params": model.parameters(), "lr": args.lr},
        {"params": criterion.parameters(), "lr": args.lr * 10, "weight_decay": 0.0},
    ])
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, batch_size=64)
    model, criterion, optimizer, train_loader, test_loader = accelerator.prepare(
        model, criterion, optimizer, train_loader, test_loader)

    history = []
    for epoch in range(args.epochs):
        total = torch.zeros(2)
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += torch.tensor([loss.item(), 1.0])
        total = accelerator.reduce(total, "sum")
        acc = nearest_neighbour_accuracy(accelerator, model, test_loader)
        history.append({"epoch": epoch, "loss": round((total[0] / total[1]).item(), 4), "nn_acc": round(acc, 4)})
        accelerator.print(history[-1])
    if accelerator.is_main_process:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save({"backbone": accelerator.unwrap_model(model).state_dict(),
                    "proxies": accelerator.unwrap_model(criterion).state_dict()}, args.out / "metric.pt")
        (args.out / "history.json").write_text(json.dumps(history, indent=1))
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
