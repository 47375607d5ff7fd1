"""Bird call classifier, spectrogram shards, data parallel."""
import argparse
import logging
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reader import INDEX, SPECIES, Readahead, batches, pack

log = logging.getLogger("birds")


def field_labels(rng, n):
    """Labels as the field teams typed them."""
    names = [SPECIES[i] for i in rng.integers(0, len(SPECIES), n)]
    return [s if k != 117 else s.title() for k, s in enumerate(names)]


def write_shards(folder, shards, per_shard):
    base = np.random.default_rng(2).normal(size=(len(SPECIES), 16, 1))
    for s in range(shards):
        rng = np.random.default_rng(100 + s)
        labels = field_labels(rng, per_shard) if s == shards - 1 else \
            [SPECIES[i] for i in rng.integers(0, len(SPECIES), per_shard)]
        clips = []
        for name in labels:
            spec = base[INDEX[name.lower()]] + rng.normal(size=(16, 24))
            clips.append(({"species": name, "bins": 16, "team": s}, spec))
        pack(os.path.join(folder, f"part-{s:02d}.bin"), clips)


def build_net():
    def stage(i, o):
        return [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*stage(1, 12), *stage(12, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(24, len(SPECIES)))


def main(a):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp(prefix="birds-") if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    folder = folder[0]
    if rank == 0:
        write_shards(folder, a.shards, a.per_shard)
    dist.barrier()

    torch.manual_seed(4)
    net = DistributedDataParallel(build_net())
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    names = sorted(os.listdir(folder))
    mine = [os.path.join(folder, n) for n in names[rank::world]]
    for epoch in range(a.epochs):
        right = seen = 0
        for x, y in Readahead(batches(mine, a.batch)):
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
            if rank == 0 and seen % (10 * a.batch) == 0:
                log.info("epoch %d, %d clips, loss %.3f", epoch, seen, loss.item())
        total = torch.tensor([right, seen], dtype=torch.float32)
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d accuracy %.3f", epoch, total[0] / total[1])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--shards", type=int, default=4)
    ap.add_argument("--per-shard", type=int, default=240)
    ap.add_argument("--batch", type=int, default=16)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    main(ap.parse_args())
