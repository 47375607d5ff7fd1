"""Keeps going after a loss spike: tear the group down, come back on another store prefix, roll back two checkpoints' worth of steps."""
import datetime
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SpikeError(RuntimeError):
    pass


class Run:
    def __init__(self, total=60, save_every=10):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.total, self.save_every = total, save_every
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.world,
                                   is_master=False, timeout=datetime.timedelta(seconds=60))
        self.dir = None
        self.skip = set()
        self.attempt = 0

    def start(self):
        prefix = dist.PrefixStore(f"attempt{self.attempt}", self.store)
        dist.init_process_group("gloo", store=prefix, rank=self.rank, world_size=self.world)
        if self.dir is None:
            box = [tempfile.mkdtemp(prefix="run-") if self.rank == 0 else None]
            dist.broadcast_object_list(box, src=0)
            self.dir = box[0]

    def build(self):
        torch.manual_seed(31)
        model = nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
        ddp = DDP(model)
        opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.total)
        return ddp, opt, sched

    def path(self):
        return os.path.join(self.dir, "latest.pt")

    def save(self, step, ddp, opt, sched):
        if self.rank == 0:
            torch.save({"step": step, "model": ddp.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()},
                       self.path() + ".tmp")
            os.replace(self.path() + ".tmp", self.path())
        dist.barrier()

    def load(self, ddp, opt, sched):
        dist.barrier()
        if not os.path.exists(self.path()):
            return 0
        ck = torch.load(self.path(), map_location="cpu")
        ddp.module.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        sched.load_state_dict(ck["sched"])
        return ck["step"]

    def batch(self, step):
        g = torch.Generator().manual_seed(step * self.world + self.rank)
        x = torch.randn(24, 9, generator=g)
        y = x[:, :3].prod(1, keepdim=True)
        if step == 37:
            y = y * 500
        return x, y

    def loop(self):
        ddp, opt, sched = self.build()
        step = self.load(ddp, opt, sched)
        while step < self.total:
            x, y = self.batch(step)
            if step not in self.skip:
                loss = nn.functional.mse_loss(ddp(x), y)
                level = loss.detach().clone()
                dist.all_reduce(level, op=dist.ReduceOp.MAX)
                if level.item() > 1e3:
                    raise SpikeError(step)
                opt.zero_grad()
                loss.backward()
                opt.step()
            sched.step()
            step += 1
            if step % self.save_every == 0:
                self.save(step, ddp, opt, sched)
                if self.rank == 0:
                    print(f"attempt {self.attempt} step {step} loss {level.item():.3f}", flush=True)

    def main(self):
        while True:
            self.start()
            try:
                self.loop()
                break
            except SpikeError as e:
                if self.rank == 0:
                    print(f"loss spike at step {e}, going back", flush=True)
                self.skip.add(e.args[0])
                self.attempt += 1
            finally:
                dist.barrier()
                dist.destroy_process_group()


if __name__ == "__main__":
    Run().main()
