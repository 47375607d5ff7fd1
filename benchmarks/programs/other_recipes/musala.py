"""3D medical patches: volumes are resampled once and kept, patches are cut from the kept volumes."""
import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("patches")


@dataclass
class Config:
    volumes: int = 12
    patches_per_volume: int = 4
    patch: int = 10
    batch_size: int = 4
    workers: int = 1
    epochs: int = 5
    lr: float = 0.01
    read_seconds: float = 0.25
    seed: int = 19


class VolumeStore:
    """Reads and resamples a scan; slow, so results are remembered."""

    def __init__(self, cfg: Config):
        self.cfg, self.kept = cfg, {}
        self.reads = 0

    def get(self, i):
        if i not in self.kept:
            self.kept[i] = self.read(i)
        return self.kept[i]

    def read(self, i):
        self.reads += 1
        time.sleep(self.cfg.read_seconds)
        g = torch.Generator().manual_seed(self.cfg.seed * 13 + i)
        raw = torch.randn(1, 1, 16, 16, 16, generator=g)
        c = torch.randint(4, 12, (3,), generator=g)
        zz = torch.stack(torch.meshgrid(*[torch.arange(16)] * 3, indexing="ij"))
        lesion = ((zz - c[:, None, None, None]).pow(2).sum(0) < 12).float()[None, None]
        img = F.interpolate(raw * 0.5 + lesion, size=(20, 20, 20), mode="trilinear", align_corners=False)
        mask = F.interpolate(lesion, size=(20, 20, 20), mode="nearest")
        return ((img - img.mean()) / img.std()).squeeze(0), mask.squeeze(0)


class PatchDataset(Dataset):
    def __init__(self, cfg: Config):
        self.cfg, self.store = cfg, VolumeStore(cfg)

    def __len__(self):
        return self.cfg.volumes * self.cfg.patches_per_volume

    def __getitem__(self, index):
        img, mask = self.store.get(index // self.cfg.patches_per_volume)
        z, y, x = torch.randint(0, 20 - self.cfg.patch + 1, (3,)).tolist()
        cut = (slice(None), slice(z, z + self.cfg.patch), slice(y, y + self.cfg.patch), slice(x, x + self.cfg.patch))
        return img[cut], mask[cut]


class VolumeSampler(DistributedSampler):
    """Splits whole volumes over the ranks, so that a rank always reads the same ones; shuffles inside."""

    def __init__(self, dataset, cfg):
        super().__init__(dataset, shuffle=True, seed=cfg.seed)
        per = cfg.patches_per_volume
        self.mine = [v * per + k for v in range(self.rank, cfg.volumes, self.num_replicas) for k in range(per)]
        self.num_samples = len(self.mine)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 100 * self.epoch + self.rank)
        return iter([self.mine[i] for i in torch.randperm(len(self.mine), generator=g).tolist()])


class Net3d(nn.Module):
    def __init__(self, ch=6):
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, ch, 3, padding=1), nn.InstanceNorm3d(ch, affine=True), nn.LeakyReLU(),
                                  nn.Conv3d(ch, ch, 3, padding=1), nn.InstanceNorm3d(ch, affine=True), nn.LeakyReLU(),
                                  nn.Conv3d(ch, 1, 1))

    def forward(self, x):
        return self.body(x)


def dice_loss(logits, mask):
    p = logits.sigmoid()
    inter = (p * mask).sum((1, 2, 3, 4))
    return 1 - ((2 * inter + 1) / (p.sum((1, 2, 3, 4)) + mask.sum((1, 2, 3, 4)) + 1)).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--workers", type=int, default=Config.workers)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, workers=a.workers)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    data = PatchDataset(cfg)
    sampler = VolumeSampler(data, cfg)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, num_workers=cfg.workers,
                        generator=torch.Generator().manual_seed(cfg.seed + rank))
    model = DDP(Net3d())
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        begin, waited = time.perf_counter(), 0.0
        total, mark = torch.zeros(1), time.perf_counter()
        for img, mask in loader:
            waited += time.perf_counter() - mark
            logits = model(img)
            loss = dice_loss(logits, mask) + F.binary_cross_entropy_with_logits(logits, mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            mark = time.perf_counter()
        sched.step()
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d loss %.4f in %.2fs (data %.2fs)", epoch, total.item() / len(loader) / world,
                     time.perf_counter() - begin, waited)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
