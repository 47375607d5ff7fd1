"""Orientation classifier on synthetic strokes with numpy augmentations in loader workers."""
import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SIZE = 12


class Strokes(Dataset):
    """Bars in one of four orientations; shift, gain and grain are drawn anew each time."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, n)
        self.base = np.stack([self.draw(k) for k in range(4)])

    @staticmethod
    def draw(kind):
        img = np.zeros((SIZE, SIZE), dtype=np.float32)
        i = np.arange(2, SIZE - 2)
        rows, cols = [(i * 0 + 6, i), (i, i * 0 + 6), (i, i), (i, SIZE - 1 - i)][kind]
        img[rows, cols] = 1.0
        return img

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        img = self.base[label]
        img = np.roll(img, tuple(np.random.randint(-2, 3, 2)), axis=(0, 1))
        img = img * np.random.uniform(0.5, 1.5) + np.random.normal(0, 0.25, img.shape)
        return torch.from_numpy(img.astype(np.float32))[None], label


class SeedWorker:
    def __init__(self, rank):
        self.rank = rank

    def __call__(self, worker_id):
        seed = torch.initial_seed() % 2**32
        np.random.seed(seed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 9, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--seed", type=int, default=42)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    data = Strokes(256, args.seed)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers, worker_init_fn=SeedWorker(rank))
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        right = seen = 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
        score = torch.tensor([right, seen], dtype=torch.float)
        dist.all_reduce(score)
        if rank == 0:
            print(f"epoch {epoch} accuracy {(score[0] / score[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
