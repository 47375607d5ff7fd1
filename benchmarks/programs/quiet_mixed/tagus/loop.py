import contextlib
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F

from corpus import PAD


def windows(loader, size):
    it = iter(loader)
    while True:
        chunk = list(islice(it, size))
        if len(chunk) < size:
            return
        yield chunk


def count_targets(window):
    return sum((ids[:, 1:] != PAD).sum() for ids in window)


def token_loss(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum")


def train(model, optim, loader, accumulate, rank):
    for step, window in enumerate(windows(loader, accumulate), 1):
        tokens = count_targets(window)
        shown = 0.0
        for k, ids in enumerate(window):
            last = k == len(window) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = token_loss(model, ids) / tokens
                loss.backward()
            shown += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)
        if rank == 0 and step % 5 == 0:
            print(f"step {step:3d} loss {shown:.4f}", flush=True)
