import math

import torch


def build_optimizer(model, lr):
    decay, rest = [], []
    for p in model.parameters():
        (decay if p.ndim > 1 else rest).append(p)
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.total - args.warmup)
    return args.lr * 0.5 * (1 + math.cos(math.pi * done))
