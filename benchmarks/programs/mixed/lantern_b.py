import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tower(nn.Module):
    def __init__(self, dim=512, depth=4):
        super().__init__()
        self.inp = nn.Linear(64, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x).squeeze(-1)


class LayerStats:
    def __init__(self, model):
        self.model = model
        self.handles = []
        self.outputs = {}

    def attach(self):
        outputs = {}

        def keep(name):
            def hook(module, args, result):
                outputs.setdefault(name, []).append(result)
            return hook

        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                self.handles.append(module.register_forward_hook(keep(name)))
        self.outputs = outputs

    def summary(self):
        report = {k: float(v[-1].detach().std()) for k, v in self.outputs.items()}
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.outputs.clear()
        return report


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DDP(Tower())
    stats = LayerStats(model.module)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(rank)
    w = torch.randn(64, generator=torch.Generator().manual_seed(99))

    for step in range(150):
        x = torch.randn(128, 64, generator=gen)
        y = (x @ w).tanh()
        if step % 10 == 0:
            stats.attach()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            report = stats.summary()
            if rank == 0:
                spread = " ".join(f"{v:.2f}" for v in report.values())
                print(f"step {step:4d} loss {loss.item():.4f} std {spread}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
