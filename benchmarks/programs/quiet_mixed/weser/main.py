import argparse
from datetime import timedelta

import torch
import torch.distributed as dist

from data import make_loader
from model import Decoder
from train import run_epoch, shard


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=288)
    p.add_argument("--vocab", type=int, default=80)
    p.add_argument("--max-len", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--log-every", type=int, default=10)
    return p.parse_args()


if __name__ == "__main__":
    args = parse()
    dist.init_process_group("gloo", timeout=timedelta(minutes=15))
    torch.manual_seed(0)
    model = shard(Decoder(args.vocab, args.max_len))
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    run_epoch(model, optim, make_loader(args), args)
    dist.barrier()
    dist.destroy_process_group()
