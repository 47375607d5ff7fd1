import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from loops import Loop


class Denoiser(nn.Module):
    def __init__(self, ch=16, depth=4):
        super().__init__()
        layers = [nn.Conv2d(1, ch, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, x):
        return x - self.body(x)


class Patches(Dataset):
    def __init__(self, n, size=32, seed=0):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        fx, fy = torch.rand(2, generator=g) * 12
        ax = torch.linspace(0, 1, self.size)
        clean = torch.sin(fx * ax)[None] * torch.cos(fy * ax)[:, None]
        return (clean + 0.3 * torch.randn(self.size, self.size, generator=g))[None], clean[None]


def loader(ds, batch, train):
    sampler = DistributedSampler(ds, shuffle=train, seed=2)
    return DataLoader(ds, batch_size=batch, sampler=sampler, drop_last=train)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(10)
    model = DDP(Denoiser())
    loop = Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    train, val = loader(Patches(192), 16, True), loader(Patches(256, seed=1), 16, False)
    for epoch in range(3):
        train.sampler.set_epoch(epoch)
        last = loop.train_epoch(train)
        mse, psnr = loop.validate(val)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train {last:.4f} val mse {mse:.4f} psnr {psnr:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
