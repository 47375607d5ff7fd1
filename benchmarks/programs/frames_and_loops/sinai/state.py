import os

import torch
import torch.distributed as dist


class PositionedSampler(torch.utils.data.Sampler):
    """Deals shuffled indices to the processes; can start in the middle of an epoch."""

    def __init__(self, size, rank, world, batch, seed):
        self.size, self.rank, self.world, self.batch, self.seed = size, rank, world, batch, seed
        self.epoch, self.done = 0, 0

    @property
    def batches(self):
        return self.size // (self.world * self.batch)

    def __len__(self):
        return (self.batches - self.done) * self.batch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=g)[: self.batches * self.world * self.batch]
        mine = order[self.rank :: self.world]
        yield from mine[self.done * self.batch :].tolist()


class Checkpoint:
    def __init__(self, folder):
        self.path = os.path.join(folder, "state.pt")
        if dist.get_rank() == 0:
            os.makedirs(folder, exist_ok=True)
            if os.path.exists(self.path):
                os.remove(self.path)
        dist.barrier()

    def save(self, run):
        mine = {"torch": torch.get_rng_state(), "noise": run.noise.get_state()}
        rng = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, rng, dst=0)
        if dist.get_rank() == 0:
            tmp = self.path + ".tmp"
            torch.save({"model": run.net.state_dict(), "opt": run.opt.state_dict(), "sched": run.sched.state_dict(),
                        "epoch": run.sampler.epoch, "done": run.sampler.done, "step": run.step, "rng": rng}, tmp)
            os.replace(tmp, self.path)
        dist.barrier()

    def load(self, run):
        if not os.path.exists(self.path):
            return False
        s = torch.load(self.path, weights_only=True)
        run.net.load_state_dict(s["model"])
        run.opt.load_state_dict(s["opt"])
        run.sched.load_state_dict(s["sched"])
        run.sampler.epoch, run.sampler.done, run.step = s["epoch"], s["done"], s["step"]
        mine = s["rng"][dist.get_rank()]
        torch.set_rng_state(mine["torch"])
        run.noise.set_state(mine["noise"])
        return True
