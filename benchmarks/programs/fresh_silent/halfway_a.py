import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Readings(Dataset):
    def __init__(self, n=400, dim=32):
        g = torch.Generator().manual_seed(31)
        self.x = torch.randn(n, dim, generator=g)
        self.y = self.x[:, :4].sum(1, keepdim=True)
        self.y[37] *= 900.0
        self.x[37] *= 40.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Regressor(nn.Module):
    def __init__(self, dim=32, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def broadcast_weights(model):
    for t in model.state_dict().values():
        dist.broadcast(t, src=0)


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(world)


def train_step(model, opt, scaler, x, y, world, max_norm):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(x)
    loss = F.mse_loss(pred.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    average_gradients(model, world)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(opt)
    scaler.update()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--max-norm", type=float, default=1.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    model = Regressor()
    broadcast_weights(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1000)
    data = Readings()
    sampler = DistributedSampler(data, shuffle=True, seed=7)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for x, y in loader:
            running += train_step(model, opt, scaler, x, y, world, args.max_norm)
        print(f"rank {rank} epoch {epoch} loss {running.item() / len(loader):.3f} scale {scaler.get_scale():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
