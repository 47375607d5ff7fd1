import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Denoiser(nn.Module):
    def __init__(self, dim=256, ramp=200):
        super().__init__()
        self.ramp = ramp
        self.progress = 0
        self.enc = nn.Sequential(nn.Linear(96, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.rec = nn.Linear(dim, 96)
        self.cls = nn.Linear(dim, 8)

    def forward(self, x, clean, y):
        h = self.enc(x)
        weight = min(1.0, self.progress / self.ramp)
        return F.mse_loss(self.rec(h), clean) + weight * F.cross_entropy(self.cls(h), y)


def data_loader(n, batch):
    g = torch.Generator().manual_seed(83)
    clean = torch.randn(n, 96, generator=g)
    data = TensorDataset(clean, torch.randint(0, 8, (n,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--backend", default="aot_eager")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    sampler, loader = data_loader(1536, 64)
    net = Denoiser()
    model = DDP(torch.compile(net, backend=args.backend))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise = torch.Generator().manual_seed(600 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for clean, y in loader:
            x = clean + 0.2 * torch.randn(clean.shape, generator=noise)
            opt.zero_grad(set_to_none=True)
            loss = model(x, clean, y)
            loss.backward()
            opt.step()
            net.progress += 1
        if rank == 0:
            print(epoch, net.progress, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
