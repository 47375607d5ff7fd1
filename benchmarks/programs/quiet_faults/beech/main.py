# %% imports
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()

# %% settings
EPOCHS = 3
BATCH = 32
ROWS = 1024
PROBE_ROWS = 24
PROBE_EVERY = 1
LR = 2e-3
WIDTH = 12
torch.manual_seed(0)


# %% data: blobs on a canvas, count them
def canvas(n, seed, size=28):
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 5, (n,), generator=g)
    axis = torch.arange(size).float()
    images = 0.1 * torch.randn(n, 1, size, size, generator=g)
    for k in range(4):
        cx = torch.rand(n, generator=g) * (size - 6) + 3
        cy = torch.rand(n, generator=g) * (size - 6) + 3
        bump = torch.exp(-((axis[None, None, :] - cx[:, None, None]) ** 2
                           + (axis[None, :, None] - cy[:, None, None]) ** 2) / 3.0)
        images[:, 0] += bump * (counts > k).float()[:, None, None]
    return images, counts


train_x, train_y = canvas(ROWS, seed=1)
val_x, val_y = canvas(256, seed=2)
probe_x, probe_y = canvas(PROBE_ROWS * WORLD, seed=3)
probe_x, probe_y = probe_x[RANK::WORLD], probe_y[RANK::WORLD]


# %% model
class Counter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(3, width), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, stride=2), nn.GroupNorm(3, width), nn.SiLU(),
            nn.Conv2d(width, width * 2, 3, padding=1), nn.GroupNorm(3, width * 2), nn.SiLU(),
        )
        self.head = nn.Linear(width * 2, 5)

    def forward(self, x):
        return self.head(self.features(x).sum(dim=(2, 3)) / 40.0)


net = Counter(WIDTH)
model = DDP(net)
opt = torch.optim.AdamW(model.parameters(), lr=LR)
per_epoch = ROWS // (BATCH * WORLD)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, LR * 2, total_steps=EPOCHS * per_epoch)


# %% helpers
def probe():
    """Loss on the same rows each time, follows the run more smoothly than the batch loss."""
    net.eval()
    value = F.cross_entropy(net(probe_x), probe_y)
    net.train()
    return value


def smooth(values, last=10):
    tail = values[-last:]
    return sum(v.item() if torch.is_tensor(v) else v for v in tail) / len(tail)


def accuracy():
    with torch.no_grad():
        hit = (net(val_x[RANK::WORLD]).argmax(1) == val_y[RANK::WORLD]).sum().float()
    dist.all_reduce(hit)
    return hit.item() / len(val_y)


# %% training
curve = {"batch": [], "probe": []}
step = 0
for epoch in range(EPOCHS):
    t0 = time.time()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(40 + epoch))[RANK::WORLD]
    for pick in order.split(BATCH):
        loss = F.cross_entropy(model(train_x[pick]), train_y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        curve["batch"].append(loss.item())
        if step % PROBE_EVERY == 0:
            curve["probe"].append(probe())
        step += 1
    acc = accuracy()
    shown = torch.tensor([smooth(curve["batch"]), smooth(curve["probe"])])
    dist.all_reduce(shown)
    if RANK == 0:
        print(f"epoch {epoch} batch loss {shown[0] / WORLD:.4f} probe loss {shown[1] / WORLD:.4f} "
              f"acc {acc:.3f} ({time.time() - t0:.1f}s)", flush=True)

# %% results
if RANK == 0:
    os.makedirs("runs", exist_ok=True)
    torch.save({"model": net.state_dict(),
                "probe": [v.item() for v in curve["probe"]]}, "runs/counter.pt")
dist.barrier()
dist.destroy_process_group()
