import argparse
import logging
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import RatingShard, RunningNorm

log = logging.getLogger("rating")


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, v):
        self.sum += v
        self.n += 1

    @property
    def avg(self):
        return self.sum / max(self.n, 1)


def build(args, rank):
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(args.dim, args.width), nn.GELU(), nn.Linear(args.width, args.width),
                        nn.GELU(), nn.Linear(args.width, 1))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.legs * args.leg_steps)
    norm = RunningNorm(args.dim)
    gen = torch.Generator().manual_seed(args.seed * 77 + rank)
    return model, opt, sched, norm, gen


def save(path, model, opt, sched, norm, gen, step, rank, world):
    states = [None] * world
    dist.all_gather_object(states, gen.get_state())
    if rank == 0:
        torch.save(dict(model=model.module.state_dict(), opt=opt.state_dict(), sched=sched.state_dict(),
                        norm=norm.state_dict(), gens=states, step=step), path)
    dist.barrier()


def load(path, model, opt, sched, norm, gen, rank):
    ck = torch.load(path, weights_only=False)
    model.module.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    norm.load_state_dict(ck["norm"])
    gen.set_state(ck["gens"][rank])
    return ck["step"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--legs", type=int, default=3)
    p.add_argument("--leg-steps", type=int, default=80)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="rating-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "last.pt")
    shard = RatingShard(6000, args.dim, rank)

    for leg in range(args.legs):
        model, opt, sched, norm, gen = build(args, rank)
        step = load(path, model, opt, sched, norm, gen, rank) if os.path.exists(path) else 0
        meter = Meter()
        for _ in range(args.leg_steps):
            x, y = shard.draw(args.batch, gen)
            norm.update(x, dist)
            loss = nn.functional.mse_loss(model(norm(x)), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            meter.add(loss.item())
            if step % 30 == 0 and rank == 0:
                log.info("leg %d step %d loss %.4f lr %.2e", leg, step, meter.avg, sched.get_last_lr()[0])
        save(path, model, opt, sched, norm, gen, step, rank, world)
        del model, opt, sched, norm, gen

    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
