import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("two-phase")


class Net(nn.Module):
    def __init__(self, dim=18, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 40), nn.ReLU(), nn.Linear(40, 16))
        self.aux = nn.Linear(16, dim)
        self.head = nn.Linear(16, classes)


class Pretext(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.body, self.aux = net.body, net.aux

    def forward(self, x):
        return self.aux(self.body(x))


class Labelled(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.body, self.head = net.body, net.head

    def forward(self, x):
        return self.head(self.body(x))


def sample(g, n, centres):
    y = torch.randint(0, len(centres), (n,), generator=g)
    return centres[y] + torch.randn(n, centres.shape[1], generator=g), y


def pretrain(net, g, centres, steps):
    model = DDP(Pretext(net))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x, _ = sample(g, 32, centres)
        noisy = x + 0.5 * torch.randn(x.shape, generator=g)
        loss = F.mse_loss(model(noisy), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def finetune(net, g, centres, steps, group):
    model = DDP(Labelled(net), process_group=group)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for s in range(1, steps + 1):
        x, y = sample(g, 32, centres)
        time.sleep(0.05)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 20 == 0 and dist.get_rank() == 0:
            log.info("finetune %d loss %.4f", s, loss.item())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pretrain-steps", type=int, default=40)
    ap.add_argument("--finetune-steps", type=int, default=100)
    ap.add_argument("--keep", type=int, default=2)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    few = dist.new_group(list(range(args.keep)))
    torch.manual_seed(21)
    centres = torch.randn(4, 18) * 1.5
    net = Net()
    g = torch.Generator().manual_seed(500 + rank)
    loss = pretrain(net, g, centres, args.pretrain_steps)
    log.info("[%d] pretrained, loss %.4f", rank, loss)
    dist.barrier()
    if rank >= args.keep:
        log.info("[%d] has no labels and is released", rank)
        dist.destroy_process_group()
        return
    finetune(net, g, centres, args.finetune_steps, few)
    dist.barrier(group=few)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
