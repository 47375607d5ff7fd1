import argparse
import random
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from data import Waves
from encoder import SpeechEncoder


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--layerdrop", type=float, default=0.1)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def build(args):
    torch.manual_seed(args.seed)
    model = SpeechEncoder(layerdrop=args.layerdrop)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


def main():
    args = parse()
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    rank = dist.get_rank()
    model, opt = build(args)
    seed_everything(args.seed * 100 + rank)
    ds = Waves()
    sampler = DistributedSampler(ds, seed=args.seed)
    loader = DataLoader(ds, batch_size=args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (wav, code) in enumerate(loader):
            logits = model(wav)
            loss = F.cross_entropy(logits.mean(1), code)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 4 == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
