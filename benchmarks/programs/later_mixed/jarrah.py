"""Snapshot ensemble with accelerate: the rate is thrown up again each cycle, members are kept."""
import argparse
import copy
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def imbalanced(n=1200, seed=5):
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < 0.1).long()
    x = torch.randn(n, 8, generator=g)
    x[:, 0] = x[:, 0] * 0.4 + (y * 2 - 1) * x[:, 1].abs()
    return x, y


def balanced_loader(x, y, batch):
    """Rare rows are drawn again and again, with replacement."""
    weight = torch.where(y == 1, 1.0 / (y == 1).sum(), 1.0 / (y == 0).sum())
    sampler = WeightedRandomSampler(weight.tolist(), num_samples=len(y), replacement=True)
    return DataLoader(TensorDataset(x, y), batch_size=batch, sampler=sampler)


def rate(step, per_cycle, top):
    return top / 2 * (1 + math.cos(math.pi * (step % per_cycle) / per_cycle))


class Ensemble:
    def __init__(self):
        self.members = []

    def add(self, model):
        self.members.append(copy.deepcopy(model).eval().requires_grad_(False))

    @torch.no_grad()
    def predict(self, x):
        return torch.stack([m(x).softmax(1) for m in self.members]).mean(0).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cycles", type=int, default=4)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--top", type=float, default=0.3)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(21)
    x, y = imbalanced()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    opt = torch.optim.SGD(model.parameters(), lr=args.top, momentum=0.9)
    model, opt, loader = accelerator.prepare(model, opt, balanced_loader(x, y, args.batch))
    ensemble = Ensemble()
    tx, ty = imbalanced(seed=6)
    step, per_cycle = 0, len(loader)
    torch.manual_seed(1000 + accelerator.process_index)  # own dropout masks

    for cycle in range(args.cycles):
        for bx, by in loader:
            for group in opt.param_groups:
                group["lr"] = rate(step, per_cycle, args.top)
            loss = F.cross_entropy(model(bx), by)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            step += 1
        if accelerator.is_main_process:
            ensemble.add(accelerator.unwrap_model(model))
        accelerator.print(f"cycle {cycle} step {step} loss {loss.item():.4f}")
    if accelerator.is_main_process:
        hit = ensemble.predict(tx) == ty
        print(f"members {len(ensemble.members)} recall {hit[ty == 1].float().mean():.3f} "
              f"specificity {hit[ty == 0].float().mean():.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
