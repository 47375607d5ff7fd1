import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dynamics import StateSpace, TankTrajectories
from trainer import Trainer


def parse():
    p = argparse.ArgumentParser("neural state space model of a tank system")
    p.add_argument("--epochs", type=int, default=22)
    p.add_argument("--horizon", type=int, default=20)
    p.add_argument("--train-size", type=int, default=4096)
    p.add_argument("--dev-size", type=int, default=256)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(7)

    train_set = TankTrajectories(args.train_size, args.horizon, seed=1)
    dev_set = TankTrajectories(args.dev_size, args.horizon, seed=2)
    sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    dev_loader = DataLoader(dev_set, batch_size=args.batch_size)

    model = DDP(StateSpace())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    trainer = Trainer(model, optimizer, train_loader, dev_loader, sampler, args.epochs)
    best = trainer.fit()
    if dist.get_rank() == 0:
        print(f"best dev loss {best:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
