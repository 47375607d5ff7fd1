"""Clip classification on (synthetic) episode videos."""
import argparse
import logging
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from video import DecoderCache

log = logging.getLogger("clips")


class EpisodeClips(Dataset):
    def __init__(self, episodes, clip_len):
        self.paths = [f"episodes/cam_{i:05d}.mp4" for i in range(episodes)]
        self.clip_len = clip_len
        self.cache = DecoderCache()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        decoder = self.cache.get(self.paths[i])
        start = int(torch.randint(0, len(decoder) - self.clip_len, ()))
        clip = decoder.clip(start, self.clip_len)
        x = torch.from_numpy(np.ascontiguousarray(clip)).permute(3, 0, 1, 2).float().div_(255)
        return x, decoder.label


class ClipNet(nn.Module):
    def __init__(self, classes, ch=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, ch, (3, 5, 5), stride=(1, 4, 4), padding=(1, 2, 2)), nn.ReLU(),
            nn.Conv3d(ch, 2 * ch, 3, stride=(2, 2, 2), padding=1), nn.ReLU(),
            nn.Conv3d(2 * ch, 4 * ch, 3, stride=2, padding=1), nn.ReLU())
        self.fc = nn.Linear(4 * ch, classes)

    def forward(self, x):
        return self.fc(self.net(x).mean((2, 3, 4)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=2400)
    ap.add_argument("--clip-len", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(100 + rank)

    data = EpisodeClips(args.episodes, args.clip_len)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers,
                        persistent_workers=args.workers > 0, drop_last=True)
    model = DDP(ClipNet(3))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.perf_counter()
        for clips, labels in loader:
            loss = F.cross_entropy(model(clips), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 30 == 0:
                log.info("epoch %d step %d loss %.4f %.1f clips/s", epoch, step, loss.item(),
                         30 * args.batch_size / (time.perf_counter() - t0))
                t0 = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
