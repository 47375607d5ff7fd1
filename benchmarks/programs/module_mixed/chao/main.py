"""Autocast and a gradient scaler under DDP; clipping sees the unscaled, averaged gradients."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 2, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 5, padding=2)
        self.norm = nn.GroupNorm(4, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x[:, None])))
        return self.out(h.mean(-1))


def data(n=384):
    g = torch.Generator().manual_seed(81)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.linspace(0, 1, 48)
    return TensorDataset(torch.sin(6.283 * (2 * y[:, None] + 1) * t) + 0.3 * torch.randn(n, 48, generator=g), y)


class Amp:
    def __init__(self, init_scale):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=6)
        self.skipped = 0

    def step(self, model, opt, loss):
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = self.scaler.get_scale()
        self.scaler.step(opt)
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < before


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(13)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    amp = Amp(init_scale=2.0 ** 12)
    ds = data()
    sampler = DistributedSampler(ds, seed=2)
    loader = DataLoader(ds, batch_size=BATCH, sampler=sampler, drop_last=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            opt.zero_grad()
            amp.step(model, opt, loss)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} scale {amp.scaler.get_scale():.0f} skipped {amp.skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
