"""Three-stage pipeline; the first stage reads inputs, the last one labels."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from stages import Stage

log = logging.getLogger("pipe")


def make_loader(args, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(args.samples, 64, generator=g)
    w = torch.randn(64, args.classes, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x @ w).argmax(1))
    order = torch.Generator().manual_seed(seed + 1)
    return DataLoader(data, batch_size=args.batch, shuffle=True, generator=order)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--samples", type=int, default=5952)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--micro", type=int, default=32)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    if args.samples % args.micro or args.batch % args.micro:
        raise SystemExit("samples and batch have to be multiples of the micro-batch")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")

    stage = Stage(rank, world, args.width, args.classes, args.micro)
    opt = torch.optim.AdamW(stage.net.parameters(), lr=args.lr)
    loader = make_loader(args, seed=3)
    chunks = args.batch // args.micro

    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = stage.run(chunks, inputs=x, targets=y)
            torch.nn.utils.clip_grad_norm_(stage.net.parameters(), 1.0)
            opt.step()
            step += 1
            if stage.last and step % 10 == 0:
                log.info("epoch %d step %3d  loss %.4f", epoch, step, loss)
        done = torch.tensor([float(step)])
        dist.all_reduce(done)
        log.info("epoch %d finished, %d steps on all stages", epoch, int(done) // world)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
