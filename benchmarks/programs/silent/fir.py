import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())

    def forward(self, x):
        return self.net(x)


def pretrained_backbone():
    torch.manual_seed(1234)
    net = Backbone()
    for _ in range(3):
        net(torch.randn(32, 1, 24))
    return net.eval().requires_grad_(False)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    backbone = pretrained_backbone()
    torch.manual_seed(rank)
    head = DDP(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)))
    opt = torch.optim.AdamW(head.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(8)
    y = torch.randint(0, 2, (256,), generator=g)
    t = torch.linspace(0, 6, 24)
    x = torch.sin(t * (1 + y[:, None])).unsqueeze(1) + 0.3 * torch.randn(256, 1, 24, generator=g)
    ds = TensorDataset(x, y)
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 16, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        hits = torch.zeros(2)
        for bx, by in loader:
            with torch.no_grad():
                feats = backbone(bx)
            out = head(feats)
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(out, by).backward()
            opt.step()
            hits += torch.stack([(out.argmax(1) == by).sum().float(), torch.tensor(float(len(by)))])
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} acc {(hits[0] / hits[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
