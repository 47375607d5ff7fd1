"""Config-driven FSDP2 trainer for a small vision transformer."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

DEFAULTS = {"dim": 32, "depth": 2, "heads": 4, "lr": 2e-3, "wd": 0.01, "steps": 30, "batch": 32, "seed": 6}


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.patch = nn.Linear(16, cfg["dim"])
        self.pos = nn.Parameter(torch.zeros(1, 9, cfg["dim"]))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(cfg["dim"], cfg["heads"], 2 * cfg["dim"], dropout=0.0, batch_first=True,
                                       norm_first=True) for _ in range(cfg["depth"]))
        self.head = nn.Linear(cfg["dim"], 3)

    def forward(self, x):
        x = self.patch(x) + self.pos
        for l in self.layers:
            x = l(x)
        return self.head(x.mean(1))


def build_optimizer(model, cfg):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": cfg["wd"]}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg["lr"])


def parallelize(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    for l in model.layers:
        fully_shard(l, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def setup(cfg):
    torch.manual_seed(cfg["seed"])
    model = Encoder(cfg)
    optimizer = build_optimizer(model, cfg)
    model = parallelize(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    return model, optimizer, scheduler


def data(cfg):
    g = torch.Generator().manual_seed(3000 + dist.get_rank())
    while True:
        y = torch.randint(0, 3, (cfg["batch"],), generator=g)
        x = torch.randn(cfg["batch"], 9, 16, generator=g)
        x[torch.arange(len(y)), :, y * 3] += 1.5
        yield x, y


def main():
    ap = argparse.ArgumentParser()
    for k, v in DEFAULTS.items():
        ap.add_argument(f"--{k}", type=type(v), default=v)
    cfg = copy.deepcopy(vars(ap.parse_args()))
    dist.init_process_group("gloo")
    model, optimizer, scheduler = setup(cfg)
    stream = data(cfg)
    for step in range(cfg["steps"]):
        x, y = next(stream)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 6 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"step {step} lr {scheduler.get_last_lr()[0]:.2e} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
