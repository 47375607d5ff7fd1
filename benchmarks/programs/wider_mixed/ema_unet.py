"""Ocean-emulator like trainer: short segments of training, each resuming from the checkpoint of the one before."""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EMATracker:
    def __init__(self, model, decay=0.98, warmup=True):
        self.decay, self.warmup = decay, warmup
        self.num_updates = 0
        self.params = {k: v.detach().clone() for k, v in model.named_parameters()}

    @torch.no_grad()
    def __call__(self, model):
        self.num_updates += 1
        d = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates)) if self.warmup else self.decay
        for k, v in model.named_parameters():
            self.params[k].lerp_(v.detach(), 1 - d)

    def get_state(self):
        return {"num_updates": self.num_updates, "params": self.params}

    def set_state(self, state):
        self.num_updates = state["num_updates"]
        for k, v in state["params"].items():
            self.params[k].copy_(v)


class Emulator(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Conv2d(2, c, 3, padding=1)
        self.mid = nn.Sequential(nn.GELU(), nn.Conv2d(c, c, 3, padding=1), nn.GELU())
        self.up = nn.Conv2d(2 * c, 2, 3, padding=1)

    def forward(self, x):
        d = self.down(x)
        return x + self.up(torch.cat([d, self.mid(d)], 1))


class Trainer:
    def __init__(self, ckpt_dir):
        self.rank = dist.get_rank()
        self.path = os.path.join(ckpt_dir, "ckpt.pt")
        torch.manual_seed(4)
        self.model = DDP(Emulator())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.ema = EMATracker(self.model.module)
        self.step = 0
        if os.path.exists(self.path):
            self.load()

    def load(self):
        ck = torch.load(self.path, map_location="cpu")
        self.ema.set_state(ck["ema"])
        self.model.module.load_state_dict(ck["model"])
        self.opt.load_state_dict(ck["optimizer"])
        self.step = ck["step"]
        self.on_weights_loaded()

    def on_weights_loaded(self):
        for p in self.model.parameters():
            p.grad = None
        self.ema = EMATracker(self.model.module)

    def save(self):
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "optimizer": self.opt.state_dict(),
                        "ema": self.ema.get_state(), "step": self.step}, self.path)
        dist.barrier()

    def sample(self):
        g = torch.Generator().manual_seed(self.step * 10 + self.rank)
        f = torch.randn(4, 2, 12, 12, generator=g)
        return f, 0.5 * f + 0.25 * (f.roll(1, -1) + f.roll(-1, -2))

    def run(self, until):
        self.model.train()
        while self.step < until:
            x, y = self.sample()
            loss = (self.model(x) - y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.ema(self.model.module)
            self.step += 1
        self.save()
        if self.rank == 0:
            print(f"step {self.step} loss {loss.item():.4f} ema updates {self.ema.num_updates}", flush=True)


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    for segment in range(3):
        Trainer(box[0]).run(until=(segment + 1) * 25)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
