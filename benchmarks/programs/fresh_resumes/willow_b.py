import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Codebook(nn.Module):
    def __init__(self, codes=64, dim=48, decay=0.98):
        super().__init__()
        self.decay = decay
        self.register_buffer("embed", torch.randn(codes, dim))
        self.register_buffer("size", torch.ones(codes))
        self.register_buffer("total", self.embed.clone())

    @torch.no_grad()
    def update(self, flat, index):
        hot = F.one_hot(index, len(self.size)).to(flat.dtype)
        local = torch.cat([hot.sum(0)[:, None], hot.t() @ flat], 1)
        dist.all_reduce(local)
        self.size.mul_(self.decay).add_(local[:, 0], alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(local[:, 1:], alpha=1 - self.decay)
        self.embed.copy_(self.total / self.size.clamp(min=1e-3)[:, None])

    def forward(self, z):
        index = torch.cdist(z.detach(), self.embed).argmin(1)
        code = self.embed[index]
        if self.training:
            self.update(z.detach(), index)
        return z + (code - z).detach(), F.mse_loss(z, code)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(144, 512), nn.GELU(), nn.Linear(512, 48))
        self.book = Codebook()
        self.dec = nn.Sequential(nn.Linear(48, 512), nn.GELU(), nn.Linear(512, 144))

    def forward(self, x):
        code, commit = self.book(self.enc(x))
        return self.dec(code), commit


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=9)
    p.add_argument("--batch", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(93)
    data = TensorDataset(torch.randn(8192, 144, generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Autoencoder(), forward_sync_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad(set_to_none=True)
            out, commit = model(x)
            loss = F.mse_loss(out, x) + 0.25 * commit
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(epoch, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
