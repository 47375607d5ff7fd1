import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoTower(nn.Module):
    def __init__(self, d_img=64, d_txt=32, d=48):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(d_img, 96), nn.GELU(), nn.Linear(96, d))
        self.text = nn.Sequential(nn.Linear(d_txt, 96), nn.GELU(), nn.Linear(96, d))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, img, txt):
        return F.normalize(self.image(img), dim=-1), F.normalize(self.text(txt), dim=-1), self.log_scale.exp()


def gather_features(x):
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x)
    return torch.cat(out)


def clip_loss(img, txt, scale):
    all_img, all_txt = gather_features(img.contiguous()), gather_features(txt.contiguous())
    rank, n = dist.get_rank(), img.shape[0]
    target = torch.arange(n) + rank * n
    return 0.5 * (
        F.cross_entropy(scale * img @ all_txt.T, target) + F.cross_entropy(scale * txt @ all_img.T, target)
    )


def pairs(n=512):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(n, 16, generator=g)
    a, b = torch.randn(16, 64, generator=g), torch.randn(16, 32, generator=g)
    return TensorDataset(z @ a + 0.1 * torch.randn(n, 64, generator=g), z @ b + 0.1 * torch.randn(n, 32, generator=g))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(TwoTower())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    ds = pairs()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for img, txt in loader:
            loss = clip_loss(*model(img, txt))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
