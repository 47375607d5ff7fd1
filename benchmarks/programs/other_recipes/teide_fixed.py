"""Action recognition on streamed video shards (IterableDataset, several loader processes per rank)."""
import argparse
import logging
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

log = logging.getLogger("video")


@dataclass
class Config:
    shards: int = 8
    clips_per_shard: int = 16
    frames: int = 6
    size: int = 10
    batch_size: int = 4
    workers: int = 2
    epochs: int = 3
    lr: float = 0.01
    shuffle_buffer: int = 12
    seed: int = 13


def read_shard(cfg, shard):
    g = torch.Generator().manual_seed(cfg.seed * 101 + shard)
    for _ in range(cfg.clips_per_shard):
        label = int(torch.randint(0, 4, (1,), generator=g))
        dy, dx = [(0, 1), (0, -1), (1, 0), (-1, 0)][label]
        frame = (torch.rand(cfg.size, cfg.size, generator=g) < 0.15).float()
        clip = torch.stack([frame.roll((dy * t, dx * t), (0, 1)) for t in range(cfg.frames)])
        yield clip + 0.1 * torch.randn(clip.shape, generator=g), label


class VideoStream(IterableDataset):
    def __init__(self, cfg: Config):
        self.cfg, self.epoch = cfg, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def my_shards(self):
        order = list(range(self.cfg.shards))
        random.Random(self.cfg.seed + self.epoch).shuffle(order)
        order = order[self.rank::self.world]
        info = get_worker_info()
        if info is not None:
            order = order[info.id::info.num_workers]
        return order

    def __iter__(self):
        rng = random.Random(self.cfg.seed * 7 + self.epoch)
        buffer = []
        for shard in self.my_shards():
            for sample in read_shard(self.cfg, shard):
                if len(buffer) < self.cfg.shuffle_buffer:
                    buffer.append(sample)
                    continue
                k = rng.randrange(len(buffer))
                buffer[k], sample = sample, buffer[k]
                yield sample
        rng.shuffle(buffer)
        yield from buffer


class Conv3dNet(nn.Module):
    def __init__(self, ch=6, classes=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, ch, (3, 3, 3), padding=1), nn.GroupNorm(2, ch), nn.ReLU(),
            nn.Conv3d(ch, ch * 2, (3, 3, 3), stride=(1, 2, 2), padding=1), nn.GroupNorm(2, ch * 2), nn.ReLU())
        self.head = nn.Linear(ch * 2, classes)

    def forward(self, clip):
        return self.head(self.body(clip.unsqueeze(1)).mean((2, 3, 4)))


class Running:
    def __init__(self):
        self.values = torch.zeros(3)

    def add(self, loss, hits, n):
        self.values += torch.tensor([loss * n, hits, n])

    def reduce(self):
        total = self.values.clone()
        dist.all_reduce(total)
        return (total[0] / total[2]).item(), (total[1] / total[2]).item(), int(total[2])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--workers", type=int, default=Config.workers)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, workers=a.workers)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(cfg.seed)

    stream = VideoStream(cfg)
    loader = DataLoader(stream, cfg.batch_size, num_workers=cfg.workers, drop_last=True)
    model = DDP(Conv3dNet())
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs)
    for epoch in range(cfg.epochs):
        stream.set_epoch(epoch)
        stats = Running()
        for clip, label in loader:
            logits = model(clip)
            loss = nn.functional.cross_entropy(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            stats.add(loss.item(), (logits.argmax(1) == label).sum().item(), len(label))
        sched.step()
        loss, acc, n = stats.reduce()
        if dist.get_rank() == 0:
            log.info("epoch %d loss %.4f acc %.3f clips %d", epoch, loss, acc, n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
