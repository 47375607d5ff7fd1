import torch
import torch.distributed as dist
from torch import nn


def train_one_epoch(model, loader, opt):
    model.train()
    total, n = 0.0, 0
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
        n += 1
    return total / n


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits, n = 0, 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        n += len(y)
    return hits / n


def validate_on_main(model, loader):
    score = None
    if dist.get_rank() == 0:
        score = evaluate(model, loader)
    dist.barrier()
    return score
