import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lars import LARS
from losses import CrossCorrelationLoss


class TwoViews(Dataset):
    def __init__(self, n=512):
        self.base = torch.randn(n, 24, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x = self.base[i]
        view = lambda: x * (torch.rand(24) > 0.2) + 0.1 * torch.randn(24)
        return view(), view()


class Encoder(nn.Module):
    def __init__(self, d=64, proj=32):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(24, d), nn.ReLU(), nn.Linear(d, d))
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(d, proj))

    def forward(self, a, b):
        z = self.projector(self.backbone(torch.cat([a, b])))
        return z.chunk(2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(Encoder())
    torch.manual_seed(600 + rank)
    criterion = CrossCorrelationLoss(gather_distributed=True)
    opt = LARS(model.parameters(), lr=0.05)
    ds = TwoViews()
    sampler = DistributedSampler(ds, seed=3)
    loader = DataLoader(ds, batch_size=32, sampler=sampler, drop_last=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for a, b in loader:
            z_a, z_b = model(a, b)
            loss = criterion(z_a, z_b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
