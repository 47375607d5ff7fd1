"""FSDP2 training of a mixer with periodic weight export."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Mixer(nn.Module):
    def __init__(self, tokens=8, d=16):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(tokens, 16), nn.GELU(), nn.Linear(16, tokens))
        self.ch = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Model(nn.Module):
    def __init__(self, depth=2, d=16):
        super().__init__()
        self.embed = nn.Linear(6, d)
        self.layers = nn.ModuleList(Mixer(8, d) for _ in range(depth))
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        x = self.embed(x)
        for l in self.layers:
            x = l(x)
        return self.head(x.mean(1))


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for l in model.layers:
        fully_shard(l, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def export(model, path):
    state = {}
    for name, t in model.state_dict().items():
        state[name] = t.full_tensor().detach().clone()
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def sample(gen, n):
    x = torch.randn(n, 8, 6, generator=gen)
    return x, (x[:, :, 0].mean(1) > 0).long() + (x[:, :, 1].mean(1) > 0.3).long()


class Loop:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.model = shard(Model())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.gen = torch.Generator().manual_seed(900 + dist.get_rank())
        self.path = os.path.join(tempfile.gettempdir(), f"spruce_{os.getppid()}.pt")

    def run(self):
        for step in range(1, self.cfg.steps + 1):
            x, y = sample(self.gen, 48)
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            if step % self.cfg.save_every == 0:
                export(self.model, self.path)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {loss.item():.4f} wrote {os.path.getsize(self.path)} bytes", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=0)
    dist.init_process_group("gloo")
    Loop(ap.parse_args()).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
