"""Sensor regression with distributed evaluation, plateau schedule and early stopping."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dataset import SensorDataset
from evaluation import EarlyStopping, gather_predictions, predict, r2_score

log = logging.getLogger("sensor")


class ConvRegressor(nn.Module):
    def __init__(self, channels, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2, stride=2), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * 16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.head(self.body(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--train_size", type=int, default=1200)
    p.add_argument("--val_size", type=int, default=301)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--patience", type=int, default=8)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"sensor-{os.environ.get('MASTER_PORT', '0')}.pt"))
    p.add_argument("--seed", type=int, default=4)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    train_set = SensorDataset(args.train_size, seed=args.seed)
    val_set = SensorDataset(args.val_size, seed=args.seed + 1)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=64, sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(ConvRegressor(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=2)
    stopper = EarlyStopping(args.patience)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in train_loader:
            loss = F.mse_loss(model(x).squeeze(-1), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(total)
        preds = gather_predictions(predict(model.module, val_loader), len(val_set))
        r2 = r2_score(preds, val_set.targets)
        scheduler.step(r2)
        if rank == 0:
            log.info("epoch %2d train mse %.4f val r2 %.4f lr %.1e", epoch, total[0] / total[1], r2,
                     optimizer.param_groups[0]["lr"])
        if stopper.update(r2, epoch, model.module):
            break

    if rank == 0:
        torch.save(stopper.best_state, args.out)
        log.info("best epoch %d r2 %.4f", stopper.best_epoch, stopper.best)
        os.remove(args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
