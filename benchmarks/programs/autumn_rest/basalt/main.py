"""Dynamics model training with restarts from a shared checkpoint."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import DynamicsModel


def is_main():
    return dist.get_rank() == 0


class Environment:
    def __init__(self, dim, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.linalg.qr(torch.randn(dim, dim, generator=g))[0]
        self.b = torch.randn(dim, dim, generator=g) / dim ** 0.5
        self.dim = dim

    def batch(self, n, gen):
        x = torch.randn(n, self.dim, generator=gen)
        return x, x @ self.a + 0.3 * torch.tanh(x @ self.b)


class Run:
    def __init__(self, args, path):
        self.args, self.path = args, path
        torch.manual_seed(args.seed)
        net = DynamicsModel(args.dim, args.depth)
        self.optimizer = net.configure_optimizers(args.lr, (0.9, 0.99), 0.05)
        self.step = 0
        if os.path.exists(path):
            ckpt = torch.load(path, map_location="cpu")
            net.load_state_dict(ckpt["model"])
            self.optimizer.load_state_dict(ckpt["optimizer"])
            self.step = ckpt["step"]
        self.model = DDP(net)
        self.env = Environment(args.dim)
        self.gen = torch.Generator().manual_seed(args.seed * 1000 + dist.get_rank() + 10 * self.step)

    def save(self):
        if is_main():
            torch.save(
                {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step},
                self.path,
            )
        dist.barrier()

    def train(self, until):
        while self.step < until:
            frac = self.step / self.args.steps
            for group in self.optimizer.param_groups:
                group["lr"] = self.args.lr * min(1.0, (self.step + 1) / 20) * (1 - 0.9 * frac)
            x, y = self.env.batch(self.args.batch, self.gen)
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 20 == 0:
                total = loss.detach().clone()
                dist.all_reduce(total)
                if is_main():
                    print(f"step {self.step} loss {total.item() / dist.get_world_size():.5f}", flush=True)
        self.save()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--restart-every", type=int, default=80)
    p.add_argument("--dim", type=int, default=192)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    path = [os.path.join(tempfile.mkdtemp(prefix="dyn-"), "state.pt") if is_main() else None]
    dist.broadcast_object_list(path)
    for until in range(args.restart_every, args.steps + 1, args.restart_every):
        run = Run(args, path[0])
        if is_main():
            print(f"leg from step {run.step} to {until}", flush=True)
        run.train(until)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
