"""CNN regression of ellipse parameters. Rank 0 evaluates the whole test set by itself."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SIZE, EVAL_EVERY, STEPS = 32, 25, 75


def ellipses(n, gen):
    grid = torch.linspace(-1, 1, SIZE)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    centre = torch.rand(n, 2, generator=gen) - 0.5
    radius = 0.2 + 0.4 * torch.rand(n, 2, generator=gen)
    d = ((xx - centre[:, 0, None, None]) / radius[:, 0, None, None]) ** 2
    d = d + ((yy - centre[:, 1, None, None]) / radius[:, 1, None, None]) ** 2
    image = torch.sigmoid(6 * (1 - d)) + 0.1 * torch.randn(n, SIZE, SIZE, generator=gen)
    return image[:, None], torch.cat([centre, radius], 1)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(32 * (SIZE // 8) ** 2, 4)

    def forward(self, x):
        return self.head(self.features(x))


@torch.no_grad()
def evaluate(net, images, targets, passes=6):
    """Test-time augmentation: several noisy passes over every picture, averaged."""
    net.eval()
    gen = torch.Generator().manual_seed(0)
    errors = []
    for x, y in zip(images.split(64), targets.split(64)):
        preds = [net(x + 0.05 * torch.randn(x.shape, generator=gen)) for _ in range(passes)]
        errors.append((torch.stack(preds).mean(0) - y).abs().mean(1))
    net.train()
    return torch.cat(errors).mean().item()


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(14)
    model = DistributedDataParallel(Regressor())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(300 + rank)
    if rank == 0:
        test = ellipses(4096, torch.Generator().manual_seed(99))
    best = float("inf")
    for step in range(1, STEPS + 1):
        x, y = ellipses(64, gen)
        loss = F.smooth_l1_loss(model(x), y, beta=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % EVAL_EVERY == 0:
            if rank == 0:
                began = time.perf_counter()
                error = evaluate(model.module, *test)
                best = min(best, error)
                print(f"test error {error:.4f} best {best:.4f} ({time.perf_counter() - began:.1f} s)", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
