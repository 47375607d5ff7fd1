"""MAE pretraining in sessions. On the cluster a session ends with its time slot and is
queued again; here they follow one another in the same job."""
import argparse
import logging
import os
import random
import shutil
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from checkpoint import CheckpointManager
from mae import MaskedAutoencoder


class Textures(Dataset):
    def __init__(self, n=384, seed=2):
        g = torch.Generator().manual_seed(seed)
        self.freq = torch.rand(n, 3, 2, generator=g) * 0.9
        self.phase = torch.rand(n, 3, generator=g) * 6.28

    def __len__(self):
        return len(self.freq)

    def __getitem__(self, i):
        ax = torch.arange(32).float()
        img = torch.sin(self.freq[i, :, 0, None, None] * ax[:, None] + self.freq[i, :, 1, None, None] * ax + self.phase[i, :, None, None])
        if random.random() < 0.5:
            img = img.flip(-1)
        return img + 0.05 * torch.from_numpy(np.random.randn(3, 32, 32)).float()


def seed_everything(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def run_session(args, manager):
    """Trains until the end of the slot; returns the number of finished epochs."""
    rank = dist.get_rank()
    seed_everything(args.seed)
    model = DDP(MaskedAutoencoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    data = Textures()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    seed_everything(args.seed + 1 + rank)
    start = manager.restore(model, optimizer, scheduler)
    logging.info("session starts at epoch %d", start)
    stop = min(start + args.slot, args.epochs)
    for epoch in range(start, stop):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for imgs in loader:
            loss = model(imgs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item(), 1.0])
        scheduler.step()
        dist.all_reduce(total)
        logging.info("epoch %d loss %.4f", epoch, (total[0] / total[1]).item())
        manager.save(model, optimizer, scheduler, epoch + 1)
    return stop


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--slot", type=int, default=2, help="epochs per session")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"mae-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    if dist.get_rank() == 0:
        shutil.rmtree(args.out, ignore_errors=True)
    dist.barrier()
    manager = CheckpointManager(args.out)
    done = 0
    while done < args.epochs:
        done = run_session(args, manager)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
