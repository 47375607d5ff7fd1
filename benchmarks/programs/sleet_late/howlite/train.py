import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine import WeightAverage, restore, save_state, warmup_cosine


def shapes(n, seed):
    """16x16 images with one bright bar; class = orientation x brightness."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 16, 16, generator=g) * 0.3
    y = torch.randint(0, 4, (n,), generator=g)
    pos = torch.randint(2, 14, (n,), generator=g)
    for i in range(n):
        amp = 1.0 if y[i] < 2 else 2.0
        if y[i] % 2:
            x[i, 0, pos[i]] += amp
        else:
            x[i, 0, :, pos[i]] += amp
    return TensorDataset(x, y)


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.SiLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(96, 4))


@torch.no_grad()
def accuracy(net, data):
    x, y = data.tensors
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--max-epochs", type=int, default=6, help="length of the lr schedule")
    ap.add_argument("--bs", type=int, default=32)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--state", default="state/last.pt")
    ap.add_argument("--resume", action="store_true")
    opts = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(17)
    train, val = shapes(768, 1), shapes(256, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=17)
    loader = DataLoader(train, batch_size=opts.bs, sampler=sampler, drop_last=True)
    net = small_cnn()
    avg = WeightAverage(net)
    opt = torch.optim.AdamW(net.parameters(), lr=opts.lr, weight_decay=0.02)
    sched = warmup_cosine(opt, warm=6, total=opts.max_epochs * len(loader))
    first = restore(opts.state, net, opt, sched, avg) if opts.resume else 0
    ddp = nn.parallel.DistributedDataParallel(net)

    for epoch in range(first, opts.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            avg.update(net)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} lr {sched.get_last_lr()[0]:.5f} loss {loss.item():.4f} "
                  f"val {accuracy(net, val):.3f} val(avg) {accuracy(avg.module, val):.3f}", flush=True)
        save_state(opts.state, net, opt, sched, avg, epoch)
        dist.barrier()
    if dist.get_rank() == 0:
        torch.save(avg.state_dict(), "state/export.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
