import os
import random

import numpy as np
import timm
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.transforms import v2

SEED = 1337


def init_seeds(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Stripes(Dataset):
    def __init__(self, n=240, transform=None):
        self.n, self.transform = n, transform

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = i % 3
        img = torch.rand(3, 40, 40, generator=g) * 0.5
        img[:, :: label + 2] += 0.5
        return self.transform(img) if self.transform else img, label


def worker_init(worker_id):
    info = torch.utils.data.get_worker_info()
    random.seed(info.seed % 2**32)
    np.random.seed(info.seed % 2**32)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    init_seeds(SEED + rank)
    tf = v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip(), v2.GaussianNoise(sigma=0.05), v2.RandomErasing(0.3)])
    train = Stripes(transform=tf)
    sampler = DistributedSampler(train, seed=SEED)
    loader = DataLoader(train, 10, sampler=sampler, num_workers=1, worker_init_fn=worker_init, persistent_workers=True)
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=3, depth=2, drop_rate=0.1, drop_path_rate=0.1)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        hits = torch.zeros(2)
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            hits += torch.tensor([(out.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} acc {hits[0] / hits[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
