import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine import Engine, Events
from handlers import BestKeeper, EarlyStopping, RunningMean


def get_args():
    ap = argparse.ArgumentParser("yield regression")
    ap.add_argument("--max-epochs", type=int, default=40)
    ap.add_argument("--patience", type=int, default=2)
    ap.add_argument("--min-delta", type=float, default=0.005)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=3)
    return ap.parse_args()


def make_table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    w = torch.linspace(-1, 1, 10)
    y = torch.tanh(x @ w) + 0.4 * x[:, 0] * x[:, 1] + 0.5 * torch.randn(n, generator=g)
    return TensorDataset(x, y.unsqueeze(1))


def build_model():
    return nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
                         nn.Linear(64, 1))


def create_trainer(model, optimizer, scheduler):
    loss_fn = nn.MSELoss()

    def step(engine, batch):
        model.train()
        x, y = batch
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    return Engine(step)


def create_evaluator(model):
    def step(engine, batch):
        model.eval()
        x, y = batch
        with torch.no_grad():
            out = model.module(x)
        return out, y

    evaluator = Engine(step)
    RunningMean("mse", lambda o: (nn.functional.mse_loss(*o).item(), len(o[1]))).attach(evaluator)
    RunningMean("mae", lambda o: (nn.functional.l1_loss(*o).item(), len(o[1]))).attach(evaluator)
    return evaluator


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    train_set, val_set = make_table(384, 1), make_table(256, 2)
    train_sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, 64, sampler=DistributedSampler(val_set, shuffle=False))

    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, args.max_epochs * len(train_loader))
    trainer = create_trainer(model, optimizer, scheduler)
    evaluator = create_evaluator(model)

    @trainer.on(Events.EPOCH_STARTED)
    def reshuffle(engine):
        train_sampler.set_epoch(engine.state.epoch)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(val_loader)

    workdir = tempfile.mkdtemp(prefix="yield_") if rank == 0 else None
    if rank == 0:
        evaluator.add(Events.COMPLETED,
                      BestKeeper(model.module, "mse", os.path.join(workdir, "best.pt")))
        evaluator.add(Events.COMPLETED,
                      EarlyStopping(trainer, "mse", args.patience, args.min_delta))

        @trainer.on(Events.EPOCH_COMPLETED)
        def show(engine):
            m = evaluator.state.metrics
            print(f"epoch {engine.state.epoch:3d} train {engine.state.output:.4f} "
                  f"val mse {m['mse']:.4f} mae {m['mae']:.4f}", flush=True)

    trainer.run(train_loader, args.max_epochs)
    dist.barrier()
    if rank == 0:
        best = torch.load(os.path.join(workdir, "best.pt"))
        print(f"best mse {best['mse']:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
