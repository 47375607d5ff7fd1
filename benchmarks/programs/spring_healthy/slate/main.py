import argparse
import logging
import os
import shutil
import signal
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from job import Ledger, StopRequest, save_atomic


def dataset(n=3600, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, 12, 12, generator=g)
    y = (x[:, 0, 2:6, 2:6].mean((1, 2)) > x[:, 1, 6:10, 6:10].mean((1, 2))).long() + 2 * (x[:, 2].mean((1, 2)) > 0).long()
    return x, y


def net():
    torch.manual_seed(44)
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(24 * 36, 64), nn.GELU(), nn.Linear(64, 4))


def train(ranks, group, total_steps, path, x, y, read, name, stop, notice=None):
    part, parts = ranks.index(dist.get_rank()), len(ranks)
    model = DDP(net(), process_group=group)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ledger, step = Ledger(len(x), 48, seed=5), 0
    if os.path.exists(path):
        state = torch.load(path)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        ledger.consumed, step = state["consumed"], state["step"]
        logging.info("%s: resumed at step %d with %d ranks", name, step, parts)
    stop.asked, ended = False, False
    while step < total_steps and not ended:
        idx = ledger.take(part, parts)
        read[idx] += 1
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step == notice:
            os.kill(os.getpid(), signal.SIGUSR1)
        if step % 25 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=group)
            logging.info("%s: step %d loss %.4f", name, step, mean / parts)
        ended = stop.agreed(step, group)
    if part == 0:
        save_atomic(path, {"model": model.module.state_dict(), "opt": opt.state_dict(), "consumed": ledger.consumed, "step": step})
    dist.barrier(group=group)
    logging.info("%s: left at step %d (%s)", name, step, "asked to" if ended else "finished")
    return step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=225)
    ap.add_argument("--notice-step", type=int, default=89, help="when the node of the last rank is reclaimed")
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    root = [args.out or tempfile.mkdtemp(prefix="spot-")] if rank == 0 else [None]
    dist.broadcast_object_list(root, src=0)
    path = os.path.join(root[0], "state.pt")
    before, after = list(range(world)), list(range(world - 1))
    group_before, group_after = dist.new_group(before), dist.new_group(after)
    x, y = dataset()
    read = torch.zeros(len(x), dtype=torch.long)

    stop = StopRequest()
    notice = args.notice_step if rank == world - 1 else None
    step = train(before, group_before, args.steps, path, x, y, read, "full pool", stop, notice)
    if step < args.steps and rank in after:
        train(after, group_after, args.steps, path, x, y, read, "smaller pool", stop)
    dist.barrier()
    dist.all_reduce(read)
    logging.info("samples read %d, per sample between %d and %d", read.sum(), read.min(), read.max())
    if rank == 0 and args.out is None:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
