import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from budget import TimeBudget
from data import SensorArchive

log = logging.getLogger("sensor")


def make_model():
    return nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def save_final(model, opt, step, out):
    """Every rank hands in its own random state, rank 0 writes."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, {"rng": torch.get_rng_state(), "step": step})
    if dist.get_rank() == 0:
        path = os.path.join(out, "final.pt")
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "ranks": states}, path)
        log.info("wrote %s at step %d", path, step)


def train(args, rank, world_size, out):
    data = SensorArchive(rank, world_size)
    log.info("%d rows ready", len(data.x))
    budget = TimeBudget(args.budget_seconds, args.reserve_seconds)
    torch.manual_seed(args.seed)
    model = DDP(make_model())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    while step < args.max_steps:
        x, y = data.sample(args.batch_size)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 50 == 0:
            log.info("step %d loss %.4f (%.1fs)", step, loss.item(), budget.elapsed)
        if budget.exhausted():
            log.info("time budget used up at step %d", step)
            break
    save_final(model, opt, step, out)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max-steps", type=int, default=100000)
    p.add_argument("--budget-seconds", type=float, default=16.0)
    p.add_argument("--reserve-seconds", type=float, default=1.0)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    box = [args.out]
    if rank == 0 and args.out is None:
        box[0] = tempfile.mkdtemp(prefix="beech-")
    dist.broadcast_object_list(box, src=0)

    train(args, rank, world_size, box[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
