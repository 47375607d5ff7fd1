import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from data import IGNORE


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def sft_loss(logits, labels):
    logits = logits[:, :-1].reshape(-1, logits.size(-1))
    target = labels[:, 1:].reshape(-1)
    total = F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="sum")
    return total / (target != IGNORE).sum().clamp(min=1)


def run_epoch(model, optim, loader, args):
    log = torch.zeros(2)
    for i, (ids, labels) in enumerate(loader, 1):
        loss = sft_loss(model(ids), labels)
        optim.zero_grad()
        loss.backward()
        optim.step()
        log += torch.tensor([loss.item(), 1.0])
        if i % args.log_every == 0:
            dist.all_reduce(log)
            if dist.get_rank() == 0:
                print(f"batch {i} loss {(log[0] / log[1]).item():.4f}", flush=True)
            log.zero_()
