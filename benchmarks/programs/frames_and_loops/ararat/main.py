import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, TensorDataset


class TabNet(nn.Module):
    def __init__(self, features, classes, width=72):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = self.inp(x)
        for gate, norm in zip(self.gates, self.norms):
            h = h + F.glu(gate(norm(h)), dim=-1)
        return self.out(h)


def tables(args):
    g = torch.Generator().manual_seed(args.seed)
    centre = torch.randn(args.classes, args.features, generator=g)

    def make(n):
        y = torch.randint(0, args.classes, (n,), generator=g)
        return TensorDataset(centre[y] + 1.5 * torch.randn(n, args.features, generator=g), y)

    return make(args.rows), make(args.eval_rows)


def train_epoch(accelerator, model, loader, opt, args):
    seen, loss_sum = 0, 0.0
    with Join([model]):
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            seen += len(y)
            loss_sum += loss.item() * len(y)
    return seen, loss_sum


@torch.no_grad()
def score(accelerator, model, loader):
    model.eval()
    net = accelerator.unwrap_model(model)
    stat = torch.zeros(2)
    for x, y in loader:
        stat += torch.tensor([net(x).argmax(1).eq(y).sum().item(), len(y)], dtype=torch.float32)
    stat = accelerator.reduce(stat, reduction="sum")
    model.train()
    return (stat[0] / stat[1]).item(), int(stat[1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=740)
    p.add_argument("--eval_rows", type=int, default=205)
    p.add_argument("--features", type=int, default=20)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--batch_size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--seed", type=int, default=15)
    p.add_argument("--output_dir", default="out_ararat")
    args = p.parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    torch.set_num_threads(1)
    set_seed(args.seed)
    train, held = tables(args)
    model = TabNet(args.features, args.classes)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    held_loader = DataLoader(held, batch_size=args.batch_size)
    model, opt, loader, held_loader = accelerator.prepare(model, opt, loader, held_loader)
    print(f"process {accelerator.process_index}: {len(loader)} batches", flush=True)
    for epoch in range(args.epochs):
        seen, loss_sum = train_epoch(accelerator, model, loader, opt, args)
        total = accelerator.reduce(torch.tensor([float(seen), loss_sum]), reduction="sum")
        acc, n = score(accelerator, model, held_loader)
        lr = args.lr * 0.6 ** (epoch + 1)
        for group in opt.param_groups:
            group["lr"] = lr
        accelerator.print(f"epoch {epoch} rows {int(total[0])} loss {total[1] / total[0]:.4f} acc {acc:.3f} on {n}",
                          flush=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.output_dir, "tab.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
