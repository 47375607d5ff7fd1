import argparse

import torch
import torch.distributed as dist

from trainer import Trainer


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--total", type=int, default=60)
    p.add_argument("--stop-at", type=int, default=30)
    p.add_argument("--resume", default=None)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--warmup", type=int, default=6)
    p.add_argument("--seed", type=int, default=77)
    args = p.parse_args()

    dist.init_process_group("gloo")
    trainer = Trainer(args)
    if args.resume:
        trainer.load(args.resume)
    last = args.total if args.resume else args.stop_at
    trainer.fit(last)
    trainer.save("ckpt.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
