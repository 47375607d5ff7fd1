import argparse

import torch
import torch.distributed as dist

from backbone import make_classifier
from data import make_loader
from thaw import Thawer


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--decay", type=float, default=0.4)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(61)
    thawer = Thawer(make_classifier(), args.lr, args.decay)
    loader, sampler = make_loader(args.batch)
    for epoch in range(args.epochs):
        model, optim = thawer.stage(epoch)
        sampler.set_epoch(epoch)
        total, steps = 0.0, 0
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            total += loss.item()
            steps += 1
        if dist.get_rank() == 0:
            print(f"epoch {epoch} groups {len(optim.param_groups)} loss {total / steps:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
