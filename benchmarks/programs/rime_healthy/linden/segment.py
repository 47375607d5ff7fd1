"""Image segmentation with the rows of every image spread over workers."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from halo import Halo


class HaloConv(nn.Module):
    def __init__(self, i, o, k=3):
        super().__init__()
        self.p = k // 2
        self.conv = nn.Conv2d(i, o, k, padding=(0, self.p))

    def forward(self, x):
        return self.conv(Halo.apply(x, self.p))


class Net(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.a, self.b, self.c = HaloConv(1, c, 5), HaloConv(c, c, 5), HaloConv(c, 2, 3)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


def blobs(n, size, gen):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(n, size, size)
    for _ in range(3):
        cy, cx = (torch.randint(0, size, (n, 1, 1), generator=gen) for _ in range(2))
        rad = torch.randint(3, 7, (n, 1, 1), generator=gen)
        mask = torch.maximum(mask, (((yy - cy) ** 2 + (xx - cx) ** 2) < rad ** 2).float())
    return (mask + 0.8 * torch.randn(n, size, size, generator=gen))[:, None], mask.long()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--size", type=int, default=48)
    ap.add_argument("--batch", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    r, w = dist.get_rank(), dist.get_world_size()
    assert args.size % w == 0
    rows = slice(r * args.size // w, (r + 1) * args.size // w)
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(2)
    vx, vy = blobs(32, args.size, torch.Generator().manual_seed(3))
    pixels = args.batch * args.size ** 2
    for step in range(args.steps):
        x, y = blobs(args.batch, args.size, gen)
        loss = F.cross_entropy(net(x[:, :, rows]), y[:, rows], reduction="sum") / pixels
        opt.zero_grad()
        loss.backward()
        shown = loss.detach().clone()
        works = [dist.all_reduce(p.grad, async_op=True) for p in net.parameters()]
        works.append(dist.all_reduce(shown, async_op=True))
        for k in works:
            k.wait()
        opt.step()
        if (step + 1) % 40 == 0:
            with torch.no_grad():
                p = net(vx[:, :, rows]).argmax(1)
            t = torch.stack([(p & vy[:, rows]).sum(), (p | vy[:, rows]).sum()]).float()
            dist.all_reduce(t)
            if r == 0:
                print(f"step {step + 1} loss {shown.item():.4f} iou {(t[0] / t[1]).item():.3f}", flush=True)
    if r == 0:
        torch.save(net.state_dict(), "seg.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
