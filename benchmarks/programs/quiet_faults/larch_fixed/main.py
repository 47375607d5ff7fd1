import glob
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from tarstream import TarStream, pack


@dataclass
class Recipe:
    shards: int = 16
    rows_per_shard: int = 48
    batch_size: int = 16
    workers: int = 2
    epochs: int = 3
    peak_lr: float = 6e-3
    seed: int = 33

    @property
    def steps_per_epoch(self):
        return self.shards * self.rows_per_shard // (self.batch_size * dist.get_world_size())


def build():
    return nn.Sequential(
        nn.Conv1d(1, 24, 7, padding=3), nn.GroupNorm(4, 24), nn.GELU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2), nn.GroupNorm(4, 32), nn.GELU(), nn.AdaptiveAvgPool1d(4),
        nn.Flatten(), nn.Linear(128, 5),
    )


def make_loader(recipe, folder):
    urls = sorted(glob.glob(os.path.join(folder, "train-*.tar")))
    stream = TarStream(urls, dist.get_rank(), dist.get_world_size(), recipe.seed)
    return stream, DataLoader(stream, batch_size=recipe.batch_size, num_workers=recipe.workers, drop_last=True)


def train(recipe, folder):
    rank = dist.get_rank()
    torch.manual_seed(recipe.seed)
    model = DDP(build())
    opt = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, recipe.peak_lr, total_steps=recipe.epochs * recipe.steps_per_epoch
    )
    stream, loader = make_loader(recipe, folder)
    for epoch in range(recipe.epochs):
        stream.set_epoch(epoch)
        meter = torch.zeros(3)
        for wave, label in itertools.islice(loader, recipe.steps_per_epoch):
            logits = model(wave)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            hit = (logits.argmax(1) == label).sum().item()
            meter += torch.tensor([loss.item() * len(label), float(hit), float(len(label))])
        dist.all_reduce(meter)
        if rank == 0:
            print(f"epoch {epoch} rows {int(meter[2])} loss {meter[0] / meter[2]:.4f} acc {meter[1] / meter[2]:.3f}", flush=True)
    return model.module


def main():
    dist.init_process_group("gloo")
    recipe = Recipe()
    box = [None]
    if dist.get_rank() == 0:
        box = [tempfile.mkdtemp(prefix="tars_")]
        pack(box[0], recipe.shards, recipe.rows_per_shard)
    dist.broadcast_object_list(box, src=0)
    net = train(recipe, box[0])
    dist.barrier()
    if dist.get_rank() == 0:
        os.makedirs("runs", exist_ok=True)
        torch.save(net.state_dict(), "runs/waves.pt")
        shutil.rmtree(box[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
