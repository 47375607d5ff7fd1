import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def update(self, value):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


@torch.no_grad()
def full_validation(net, val_loader):
    net.eval()
    total, n = 0.0, 0
    for x, y in val_loader:
        total += F.mse_loss(net(x), y, reduction="sum").item()
        n += len(x)
    net.train()
    return total / n


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(16)
    g = torch.Generator().manual_seed(17)
    x = torch.randn(225, 6, generator=g)
    y = x[:, :1] * 2 + 0.3 * torch.randn(225, 1, generator=g)
    train, val = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 8, sampler=sampler)
    val_loader = DataLoader(val, 16)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5)
    stopper = EarlyStopping(patience=4)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            F.mse_loss(model(bx), by).backward()
            opt.step()
        val_loss = full_validation(model.module, val_loader)
        plateau.step(val_loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val {val_loss:.4f}", flush=True)
        if stopper.update(val_loss):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
