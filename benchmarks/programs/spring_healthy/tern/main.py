import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from scaling import LossScaler, MasterWeights


class Stack(nn.Module):
    def __init__(self, dim=96, depth=4, classes=20):
        super().__init__()
        self.inp = nn.Linear(48, dim)
        self.mid = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = F.relu(self.inp(x))
        for m in self.mid:
            x = x + F.relu(m(x))
        return self.out(x).float()


class Stream:
    def __init__(self, rank, batch):
        g = torch.Generator().manual_seed(12)
        self.w = torch.randn(48, 20, generator=g)
        self.gen = torch.Generator().manual_seed(500 + rank)
        self.batch = batch

    def next(self):
        x = torch.randn(self.batch, 48, generator=self.gen)
        y = (torch.sin(x * 1.3) @ self.w + 0.3 * torch.randn(self.batch, 20, generator=self.gen)).argmax(1)
        return x.half(), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=220)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(1)
    model = Stack().half()
    master = MasterWeights(model)
    opt = torch.optim.Adam(master.params, lr=args.lr, eps=1e-6)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=args.updates)
    scaler, stream = LossScaler(), Stream(rank, args.batch)

    updates, tried, window = 0, 0, 0.0
    while updates < args.updates:
        x, y = stream.next()
        loss = F.cross_entropy(model(x), y)
        model.zero_grad(set_to_none=True)
        (loss * scaler.scale).backward()
        tried += 1
        overflow = master.collect(scaler.scale)
        if overflow:
            logging.info("try %d overflows at scale %g, not applied", tried, scaler.scale)
        else:
            nn.utils.clip_grad_norm_(master.params, 1.0)
            opt.step()
            sched.step()
            master.publish()
            updates += 1
            window += loss.item()
            if updates % 40 == 0:
                logging.info("update %d loss %.4f scale %g", updates, window / 40, scaler.scale)
                window = 0.0
        scaler.update(overflow)

    state = torch.tensor([scaler.scale, float(tried), sum(p.detach().double().abs().sum().item() for p in master.params)], dtype=torch.float64)
    every = [torch.zeros_like(state) for _ in range(world)]
    dist.all_gather(every, state)
    logging.info("tries %d updates %d, rank states %s", tried, updates, [e.tolist() for e in every])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
