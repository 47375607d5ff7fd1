"""Two-stage GPipe style training, one stage per process."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from stages import BackStage, FrontStage, build_stage

log = logging.getLogger("pipe")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--samples", type=int, default=232)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--micro-batch-size", type=int, default=16)
    p.add_argument("--dim", type=int, default=20)
    p.add_argument("--hidden", type=int, default=48)
    p.add_argument("--lr", type=float, default=0.05)
    return p.parse_args()


def make_loader(args):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(args.samples, args.dim, generator=g)
    y = (x[:, :4].sum(1) > 0).long()
    return DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=False)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{rank} %(message)s")
    torch.manual_seed(rank)

    net = build_stage(rank, args.dim, args.hidden, 2)
    if rank == 0:
        stage = FrontStage(net, args.micro_batch_size, peer=1)
    else:
        stage = BackStage(net, args.micro_batch_size, peer=0, hidden=args.hidden)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr)
    loader = make_loader(args)

    for epoch in range(args.epochs):
        t0 = time.time()
        for step, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = stage.run_batch(x if rank == 0 else y)
            opt.step()
            if loss is not None and step % 2 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss)
        log.info("epoch %d took %.2fs", epoch, time.time() - t0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
