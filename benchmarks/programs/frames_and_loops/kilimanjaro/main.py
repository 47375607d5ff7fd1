import argparse
import logging
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from probes import ActivationProbes

log = logging.getLogger("seg")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--samples", type=int, default=480)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--size", type=int, default=24)
    p.add_argument("--width", type=int, default=12)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--probe-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=4)
    return p.parse_args()


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU())


class MiniUNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.d1, self.d2 = DoubleConv(1, w), DoubleConv(w, 2 * w)
        self.up = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.u1 = DoubleConv(2 * w, w)
        self.head = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        return self.head(self.u1(torch.cat([a, self.up(b)], 1)))


def discs(args):
    g = torch.Generator().manual_seed(args.seed)
    n, s = args.samples, args.size
    c = torch.rand(n, 2, generator=g) * s
    r = 3 + torch.rand(n, generator=g) * 4
    yy, xx = torch.meshgrid(torch.arange(s), torch.arange(s), indexing="ij")
    d = (yy[None] - c[:, 0, None, None]) ** 2 + (xx[None] - c[:, 1, None, None]) ** 2
    mask = (d < r[:, None, None] ** 2).long()
    img = mask.float() + 0.6 * torch.randn(n, s, s, generator=g)
    return TensorDataset(img.unsqueeze(1), mask)


def rss_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2 ** 20


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = discs(args)
    train, held = torch.utils.data.random_split(data, [400, args.samples - 400],
                                                torch.Generator().manual_seed(args.seed))
    sampler = DistributedSampler(train, world, rank, seed=args.seed)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    net = MiniUNet(args.width)
    model = DDP(net)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    probes = ActivationProbes(net, (nn.ReLU, nn.ConvTranspose2d), args.probe_every) if rank == 0 else None
    for epoch in range(args.epochs):
        t0 = time.time()
        sampler.set_epoch(epoch)
        model.train()
        sums = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            sums += torch.tensor([loss.item(), 1.0])
            if probes is not None:
                rows = probes.tick()
                if rows:
                    name, (m, s, dead) = next(iter(rows.items()))
                    log.info("probe %s mean %.3f std %.3f dead %.2f", name, m, s, dead)
        model.eval()
        inter = torch.zeros(2)
        with torch.no_grad():
            for i in range(rank, len(held), world):
                x, y = held[i]
                pred = net(x[None]).argmax(1)[0]
                inter += torch.tensor([(pred & y).sum().item(), (pred | y).sum().item()], dtype=torch.float32)
        dist.all_reduce(sums)
        dist.all_reduce(inter)
        log.info("epoch %d loss %.4f iou %.3f rss %.0f MB %.1fs", epoch, sums[0] / sums[1],
                 inter[0] / inter[1], rss_mb(), time.time() - t0)
    if probes is not None:
        probes.close()
    if rank == 0:
        os.makedirs("out_kilimanjaro", exist_ok=True)
        torch.save(net.state_dict(), "out_kilimanjaro/unet.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
