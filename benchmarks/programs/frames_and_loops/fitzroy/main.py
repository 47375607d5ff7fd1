import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from growing import GrowingAutoencoder


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--stages", type=int, default=3)
    p.add_argument("--epochs-per-stage", type=int, default=2)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--images", type=int, default=480)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=23)
    p.add_argument("--out", default="out_fitzroy")
    return p.parse_args()


def blobs(args, size):
    g = torch.Generator().manual_seed(args.seed)
    c = torch.rand(args.images, 2, 2, generator=g)
    s = 0.08 + 0.1 * torch.rand(args.images, 2, generator=g)
    axis = (torch.arange(size) + 0.5) / size
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    d = (yy[None, None] - c[:, :, 0, None, None]) ** 2 + (xx[None, None] - c[:, :, 1, None, None]) ** 2
    return torch.exp(-d / (2 * s[:, :, None, None] ** 2)).sum(1, keepdim=True)


class Stage:
    def __init__(self, net, images, args, index):
        self.net, self.args, self.index = net, args, index
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        net.freeze_inactive()
        size = net.resolution
        scaled = F.adaptive_avg_pool2d(images, size)
        split = len(scaled) - 60
        data = TensorDataset(scaled[:split])
        self.held = scaled[split:]
        self.sampler = DistributedSampler(data, self.world, self.rank, seed=args.seed + index, drop_last=True)
        self.loader = DataLoader(data, args.batch, sampler=self.sampler, drop_last=True)
        self.model = DDP(net)
        self.opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=args.lr * 0.8 ** index)
        self.steps = args.epochs_per_stage * len(self.loader)

    def run(self):
        step = 0
        for epoch in range(self.args.epochs_per_stage):
            self.sampler.set_epoch(epoch)
            sums = torch.zeros(2)
            for (x,) in self.loader:
                if self.index > 0:
                    self.net.alpha = min(1.0, (step + 1) / (0.6 * self.steps))
                loss = F.mse_loss(self.model(x), x)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                sums += torch.tensor([loss.item(), 1.0])
                step += 1
            dist.all_reduce(sums)
            held = self.evaluate()
            if self.rank == 0:
                print(f"stage {self.index} res {self.net.resolution} epoch {epoch} loss {sums[0] / sums[1]:.4f} "
                      f"held {held:.4f} alpha {self.net.alpha:.2f}", flush=True)

    @torch.no_grad()
    def evaluate(self):
        x = self.held[self.rank :: self.world]
        stat = torch.tensor([F.mse_loss(self.net(x), x).item() * len(x), float(len(x))])
        dist.all_reduce(stat)
        return (stat[0] / stat[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    images = blobs(args, 4 * 2 ** (args.stages - 1))
    net = GrowingAutoencoder()
    for index in range(args.stages):
        if index > 0:
            net.grow()
        Stage(net, images, args, index).run()
    net.alpha = 1.0
    if dist.get_rank() == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(args.out, "ae.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
