"""Cloud segmentation with a small U-Net."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from journal import Journal
from tiles import Tiles

log = logging.getLogger("clouds")


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.a, self.b, self.c = conv(3, w), conv(w, 2 * w), conv(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(nn.functional.max_pool2d(a, 2))
        up = nn.functional.interpolate(b, scale_factor=2)
        return self.out(self.c(torch.cat([a, up], 1)))


def pixels(loss_map, keep):
    """The worst pixels of a batch, for the journal."""
    v, i = loss_map.flatten().topk(keep)
    return [{"at": int(k), "loss": round(float(x), 5)} for x, k in zip(v, i)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--tiles", type=int, default=480)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--keep", type=int, default=5000)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    journal = Journal(os.path.join(tempfile.mkdtemp(prefix="clouds-"), "run.json.gz"))
    data = Tiles(a.tiles, journal)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, a.batch, sampler=sampler, num_workers=a.workers)
    net = DDP(UNet())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    if rank == 0:
        journal.start()
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        for img, mask in loader:
            out = net(img)
            each = nn.functional.binary_cross_entropy_with_logits(out, mask, reduction="none")
            opt.zero_grad()
            each.mean().backward()
            opt.step()
            journal.row(epoch=epoch, loss=each.mean().item(), worst=pixels(each.detach(), a.keep))
        if rank == 0:
            log.info("epoch %d loss %.4f", epoch, each.mean().item())
        journal.sync_soon()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
