"""Reconstruction from undersampled k-space; the sampling masks are random and drawn in the loader workers."""
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class RandomMask:
    def __init__(self, width, center=4, acceleration=3):
        self.width, self.center, self.acceleration = width, center, acceleration
        self.rng = np.random.RandomState()

    def __call__(self):
        mask = self.rng.uniform(size=self.width) < 1.0 / self.acceleration
        c = self.width // 2
        mask[c - self.center // 2:c + self.center // 2] = True
        return torch.from_numpy(mask.astype("float32"))


class Slices(Dataset):
    def __init__(self, mask_fn, n=96, size=24):
        self.mask_fn, self.n, self.size = mask_fn, n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        img = torch.zeros(self.size, self.size)
        for _ in range(4):
            y, x, h, w = torch.randint(2, 12, (4,), generator=g).tolist()
            img[y:y + h, x:x + w] += 0.5
        mask = self.mask_fn()
        k = torch.fft.fftshift(torch.fft.fft2(img)) * mask
        under = torch.fft.ifft2(torch.fft.ifftshift(k)).abs()
        return under.unsqueeze(0), img.unsqueeze(0), mask


def worker_init_fn(worker_id):
    info = torch.utils.data.get_worker_info()
    base_seed = 2024
    info.dataset.mask_fn.rng.seed(base_seed + info.id)


class UNetLet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.LeakyReLU(0.2))
        self.b = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.LeakyReLU(0.2))
        self.c = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.d = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        a = self.a(x)
        return x + self.d(torch.cat([a, self.c(self.b(a))], 1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ds = Slices(RandomMask(24))
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, batch_size=8, sampler=sampler, num_workers=2, worker_init_fn=worker_init_fn,
                        persistent_workers=True)
    model = DDP(UNetLet())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for under, full, _ in loader:
            loss = nn.functional.l1_loss(model(under), full)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} l1 {loss.item():.4f}", flush=True)
    del loader
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
