"""Epoch shards are staged in a bucket directory and copied to scratch by every worker."""
import logging
import shutil
import zlib
from pathlib import Path

import torch

log = logging.getLogger("bucket")


class Link:
    """The WAN link to the bucket. Now and then the tail of a transfer is lost."""

    def __init__(self, rank, loss_rate=0.04, seed=24):
        self.loss_rate = loss_rate
        self.gen = torch.Generator().manual_seed(seed * 31 + rank)

    def copy(self, src, dst):
        payload = src.read_bytes()
        if torch.rand(1, generator=self.gen).item() < self.loss_rate:
            payload = payload[: len(payload) // 2]
        dst.write_bytes(payload)


class Bucket:
    def __init__(self, root):
        self.root = Path(root)

    def stage(self, epoch, world_size, rows, dim):
        folder = self.root / f"epoch{epoch}"
        folder.mkdir(parents=True, exist_ok=True)
        teacher = torch.randn(dim, generator=torch.Generator().manual_seed(0))
        for r in range(world_size):
            gen = torch.Generator().manual_seed(epoch * 1000 + r)
            x = torch.randn(rows, dim, generator=gen)
            y = (x @ teacher / dim ** 0.5).tanh() + 0.1 * torch.randn(rows, generator=gen)
            torch.save({"x": x, "y": y}, folder / f"shard{r}.pt")
            crc = zlib.crc32((folder / f"shard{r}.pt").read_bytes())
            (folder / f"shard{r}.crc").write_text(str(crc))

    def shard(self, epoch, rank):
        return self.root / f"epoch{epoch}" / f"shard{rank}.pt"

    def checksum(self, epoch, rank):
        return int((self.root / f"epoch{epoch}" / f"shard{rank}.crc").read_text())

    def drop(self, epoch):
        shutil.rmtree(self.root / f"epoch{epoch}")


class CorruptShard(OSError):
    pass


def read_verified(path, crc):
    if zlib.crc32(path.read_bytes()) != crc:
        raise CorruptShard(f"checksum of {path.name} does not match")
    return torch.load(path)
