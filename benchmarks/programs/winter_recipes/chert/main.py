import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from data import ToyCoco, build_loader
from detector import CenterDetector
from engine import train_one_epoch


def get_args():
    p = argparse.ArgumentParser("detection reference training")
    p.add_argument("--images", type=int, default=384)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--lr-steps", type=int, nargs="+", default=[4, 5])
    p.add_argument("--no-aspect-grouping", action="store_true")
    p.add_argument("--output-dir", default=os.path.join(tempfile.gettempdir(), f"det-{os.environ.get('MASTER_PORT', 0)}"))
    return p.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(0)

    dataset = ToyCoco(args.images)
    loader = build_loader(dataset, args.batch_size, group_by_aspect=not args.no_aspect_grouping)
    model = DistributedDataParallel(CenterDetector(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, args.lr_steps, gamma=0.1)

    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, loader, epoch)
        scheduler.step()
        if rank == 0:
            os.makedirs(args.output_dir, exist_ok=True)
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, os.path.join(args.output_dir, "checkpoint.pth"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
