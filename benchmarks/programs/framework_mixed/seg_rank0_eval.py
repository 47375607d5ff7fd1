import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Discs(Dataset):
    def __init__(self, n, offset):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i + self.offset)
        cy, cx, r = (torch.rand(3, generator=g) * torch.tensor([24.0, 24.0, 6.0]) + torch.tensor([4.0, 4.0, 3.0])).tolist()
        yy, xx = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        mask = (((yy - cy) ** 2 + (xx - cx) ** 2) < r * r).float()
        return (mask + 0.4 * torch.randn(32, 32, generator=g)).unsqueeze(0), mask.unsqueeze(0)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )


@torch.no_grad()
def dice(model, loader):
    model.eval()
    inter = total = 0.0
    for x, m in loader:
        p = (model(x) > 0).float()
        inter += 2 * (p * m).sum().item()
        total += (p.sum() + m.sum()).item()
    return inter / max(total, 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(net())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    train = Discs(192, 0)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 12, sampler=sampler)
    val_loader = DataLoader(Discs(64, 10_000), 16) if rank == 0 else None
    best = torch.zeros(1)
    for epoch in range(4):
        model.train()
        sampler.set_epoch(epoch)
        for x, m in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), m)
            opt.zero_grad()
            loss.backward()
            opt.step()
        score = torch.zeros(1)
        if rank == 0:
            snapshot = copy.deepcopy(model.module)
            score[0] = dice(snapshot, val_loader)
            print(f"epoch {epoch} loss {loss.item():.4f} dice {score.item():.4f}", flush=True)
            if score > best:
                torch.save(snapshot.state_dict(), "best.pt")
        dist.broadcast(score, 0)
        best = torch.maximum(best, score)
        if best > 0.98:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
