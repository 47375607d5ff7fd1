import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class FFN(nn.Module):
    def __init__(self, d=64, h=256):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers=3, d=64, classes=6):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.layers = nn.ModuleList(FFN(d) for _ in range(layers))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        x = self.inp(x)
        for l in self.layers:
            x = l(x)
        return self.out(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Model()
    for layer in model.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(640, 20, generator=g)
    ds = TensorDataset(x, (x @ torch.randn(20, 6, generator=g)).argmax(1))
    for epoch in range(args.epochs):
        order = torch.Generator().manual_seed(50 + epoch)
        for xb, yb in DataLoader(ds, 32, shuffle=True, generator=order):
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
