"""Keeps the best sharded checkpoint of a run."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Best:
    def __init__(self, patience):
        self.value, self.stale, self.patience = float("inf"), 0, patience

    def update(self, value):
        if value < self.value - 1e-4:
            self.value, self.stale = value, 0
            return True
        self.stale += 1
        return False


class Callback:
    def on_validation_end(self, trainer, metrics):
        pass


class CheckpointBest(Callback):
    def __init__(self, folder, patience):
        self.folder, self.best = Path(folder), Best(patience)

    def on_validation_end(self, trainer, metrics):
        if self.best.update(metrics["val_loss"]):
            state = {"model": trainer.model.module.state_dict(), "epoch": trainer.epoch}
            dcp.save(state, checkpoint_id=self.folder / f"epoch{trainer.epoch}")
            trainer.saved.append(trainer.epoch)


class Trainer:
    def __init__(self, model, callbacks, lr):
        self.model, self.callbacks = DDP(model), callbacks
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.epoch, self.saved = 0, []

    def data(self, split, count):
        seed = (self.epoch if split == "train" else 77) * 100 + self.rank
        gen = torch.Generator().manual_seed(seed)
        for _ in range(count):
            x = torch.randn(16, 8, generator=gen)
            noise = torch.randn(16, generator=gen) * (0.2 + 0.6 * self.rank)
            yield x, x[:, 0] * x[:, 1] + noise

    def train(self):
        for x, y in self.data("train", 6):
            self.opt.zero_grad()
            loss = (self.model(x).squeeze(1) - y).square().mean()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        losses = [(self.model.module(x).squeeze(1) - y).square().mean() for x, y in self.data("valid", 3)]
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        return {"val_loss": mean.item() / self.world}

    def fit(self, epochs):
        for self.epoch in range(epochs):
            self.train()
            metrics = self.validate()
            for callback in self.callbacks:
                callback.on_validation_end(self, metrics)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--out", default="quarry_ckpt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    trainer = Trainer(model, [CheckpointBest(args.out, patience=4)], args.lr)
    trainer.fit(args.epochs)
    if trainer.rank == 0:
        print(f"kept epochs {trainer.saved}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
