"""Step based regression on a resampled stream; can be continued with --resume."""
import argparse
import glob
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import Resampled, pool

HERE = os.path.dirname(os.path.abspath(__file__))


def build():
    return nn.Sequential(nn.Linear(40, 256), nn.SiLU(), nn.Dropout(0.05), nn.Linear(256, 256), nn.SiLU(),
                         nn.Linear(256, 1))


class Checkpoint:
    def __init__(self, folder):
        self.folder, self.rank = folder, dist.get_rank()
        os.makedirs(folder, exist_ok=True)

    def save(self, step, model, opt, sched, stream):
        torch.save({"stream": stream.state(), "rng": torch.get_rng_state(), "world": dist.get_world_size()},
                   os.path.join(self.folder, f"state_{step:06d}_rank{self.rank}.pt"))
        dist.barrier()
        if self.rank == 0:
            main = os.path.join(self.folder, f"model_{step:06d}.pt")
            torch.save({"step": step, "model": model.module.state_dict(), "opt": opt.state_dict(),
                        "sched": sched.state_dict()}, main + ".tmp")
            os.replace(main + ".tmp", main)
        dist.barrier()

    def newest(self):
        box = [None]
        if self.rank == 0:
            found = sorted(glob.glob(os.path.join(self.folder, "model_*.pt")))
            box = [int(found[-1][-9:-3]) if found else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def load(self, step):
        main = torch.load(os.path.join(self.folder, f"model_{step:06d}.pt"), map_location="cpu")
        own = torch.load(os.path.join(self.folder, f"state_{step:06d}_rank{self.rank}.pt"), map_location="cpu")
        if own["world"] != dist.get_world_size():
            raise SystemExit("checkpoint was written by another number of processes")
        return main, own


@torch.no_grad()
def test_error(model, data, rank, world):
    model.eval()
    x, y = data[0][rank::world], data[1][rank::world]
    s = torch.zeros(2)
    for i in range(0, len(x), 64):
        s += torch.tensor([F.mse_loss(model(x[i:i + 64]).squeeze(1), y[i:i + 64], reduction="sum").item(),
                           float(len(x[i:i + 64]))])
    dist.all_reduce(s)
    model.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--plan", type=int, default=480)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--every", type=int, default=80)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--folder", default=os.path.join(HERE, "states"))
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    net = build()
    ckpt = Checkpoint(args.folder)
    step, main_state, own = 0, None, None
    if args.resume:
        newest = ckpt.newest()
        if newest is not None:
            main_state, own = ckpt.load(newest)
            net.load_state_dict(main_state["model"])
            step = main_state["step"]
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.plan)
    if main_state is not None:
        opt.load_state_dict(main_state["opt"])
        sched.load_state_dict(main_state["sched"])
        if rank == 0:
            print(f"continuing from step {step}", flush=True)

    stream = Resampled(pool(4000, 0), rank, args.seed, None if own is None else own["stream"])
    batches = iter(DataLoader(stream, batch_size=args.batch))
    if own is not None:
        torch.set_rng_state(own["rng"])
    held = pool(501, 1)
    running = torch.zeros(())
    while step < args.steps:
        x, y = next(batches)
        loss = F.mse_loss(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        running += loss.detach()
        if step % args.every == 0:
            running /= args.every * world
            dist.all_reduce(running)
            err = test_error(model, held, rank, world)
            if rank == 0:
                print(f"step {step} train {running.item():.4f} test {err:.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
            running = torch.zeros(())
            ckpt.save(step, model, opt, sched, stream)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
