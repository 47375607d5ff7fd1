import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class TwoTower(nn.Module):
    def __init__(self, d_img=20, d_txt=12, dim=16):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(d_img, 32), nn.GELU(), nn.Linear(32, dim))
        self.textual = nn.Sequential(nn.Linear(d_txt, 32), nn.GELU(), nn.Linear(32, dim))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, img, txt):
        return F.normalize(self.visual(img), dim=-1), F.normalize(self.textual(txt), dim=-1), self.logit_scale.exp()


def gather_features(feat, rank, world):
    parts = [torch.zeros_like(feat) for _ in range(world)]
    dist.all_gather(parts, feat)
    parts[rank] = feat
    return torch.cat(parts)


class ClipLoss(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.rank, self.world = rank, world

    def forward(self, img, txt, scale):
        all_img = gather_features(img, self.rank, self.world)
        all_txt = gather_features(txt, self.rank, self.world)
        labels = torch.arange(len(img)) + self.rank * len(img)
        loss_i = F.cross_entropy(scale * img @ all_txt.t(), labels)
        loss_t = F.cross_entropy(scale * txt @ all_img.t(), labels)
        return (loss_i + loss_t) / 2


def pairs(n=320):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(n, 8, generator=g)
    a, b = torch.randn(8, 20, generator=g), torch.randn(8, 12, generator=g)
    return TensorDataset(z @ a + 0.3 * torch.randn(n, 20, generator=g), z @ b + 0.3 * torch.randn(n, 12, generator=g))


def train_one_epoch(model, criterion, loader, optimizer):
    model.train()
    running = torch.zeros(())
    for img, txt in loader:
        loss = criterion(*model(img, txt))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.module.logit_scale.clamp_(0, math.log(100))
        running += loss.detach()
    dist.all_reduce(running)
    return running.item() / len(loader) / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(TwoTower())
    criterion = ClipLoss(rank, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    ds = pairs()
    sampler = DistributedSampler(ds, drop_last=True)
    loader = DataLoader(ds, batch_size=16, sampler=sampler, drop_last=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, criterion, loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
