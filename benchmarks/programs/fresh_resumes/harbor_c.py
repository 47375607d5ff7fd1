import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WINDOW = 6


def build():
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 3, 3, padding=1),
    )


def loaders(batch):
    g = torch.Generator().manual_seed(17)
    clean = torch.rand(2048, 3, 48, 48, generator=g)
    data = TensorDataset(clean)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)


def grid_stats(frames):
    return torch.stack([f.std() for f in frames]).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--show", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(build())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler, loader = loaders(args.batch)
    noise = torch.Generator().manual_seed(100 + rank)
    previews = []
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (clean,) in loader:
            noisy = clean + 0.1 * torch.randn(clean.shape, generator=noise)
            opt.zero_grad(set_to_none=True)
            restored = model(noisy)
            loss = F.l1_loss(restored, clean)
            loss.backward()
            opt.step()
            step += 1
            previews.append(torch.cat([noisy, restored.detach(), clean], 3))
            if rank == 0 and step % args.show == 0:
                print(step, round(grid_stats(previews), 4), flush=True)
                previews.clear()
            previews = previews[-WINDOW:]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
