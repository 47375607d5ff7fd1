import argparse
import os
import shutil
from glob import glob

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Checkpoints:
    def __init__(self, out, keep):
        self.out = out
        self.dir = os.path.join(out, "checkpoints")
        self.keep = keep
        if dist.get_rank() == 0:
            os.makedirs(self.dir, exist_ok=True)

    def rotate(self):
        found = sorted(glob(os.path.join(self.dir, "checkpoint-*")))
        for path in found[: max(0, len(found) - self.keep)]:
            shutil.rmtree(path)

    def save(self, step, model, opt):
        if dist.get_rank() != 0:
            return
        name = f"checkpoint-{step}"
        folder = os.path.join(self.dir, name)
        os.makedirs(folder, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
        torch.save({"opt": opt.state_dict(), "step": step}, os.path.join(folder, "training.pt"))
        with open(os.path.join(self.out, "latest"), "w") as f:
            f.write(os.path.join("checkpoints", name))
        self.rotate()


class Mixer(nn.Module):
    def __init__(self, tokens=16, dim=96):
        super().__init__()
        self.t = nn.Linear(tokens, tokens)
        self.c = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.out = nn.Linear(dim, 5)

    def forward(self, x):
        x = x + self.t(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.c(x)
        return self.out(x.mean(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default="orchard_out")
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--save_every", type=int, default=20)
    p.add_argument("--keep", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(14)
    data = TensorDataset(torch.randn(4096, 16, 96, generator=g), torch.randint(0, 5, (4096,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    model = DDP(Mixer())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ckpt = Checkpoints(args.out, args.keep)
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
            step += 1
            if step % args.save_every == 0:
                ckpt.save(step, model, opt)
                dist.barrier()
            if step == args.steps:
                break
        epoch += 1
    if rank == 0:
        print("finished", step, "epochs", epoch, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
