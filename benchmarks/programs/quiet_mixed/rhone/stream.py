import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class FrameStream(IterableDataset):
    """Draws `per_epoch` frames from the archive, a new draw for each epoch."""

    def __init__(self, archive, per_epoch, seed):
        self.archive = archive
        self.per_epoch = per_epoch
        self.seed = seed
        self.epoch = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def draw(self):
        g = torch.Generator().manual_seed(self.seed * 1000 + int(self.epoch))
        return torch.randperm(len(self.archive), generator=g)[: self.per_epoch]

    def __iter__(self):
        info = get_worker_info()
        wid, workers = (info.id, info.num_workers) if info else (0, 1)
        mine = self.draw()[self.rank * workers + wid:: self.world * workers]
        for i in mine.tolist():
            yield self.archive[i]


def stream_loader(cfg, archive):
    stream = FrameStream(archive, cfg["per_epoch"], cfg["seed"])
    loader = DataLoader(stream, batch_size=cfg["batch"], num_workers=cfg["workers"],
                        persistent_workers=cfg["workers"] > 0)
    return stream, loader
