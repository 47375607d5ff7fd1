"""Deep residual MLP with a look at the activation scale of every block in every step."""
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.lin(self.norm(x)))


class Tower(nn.Module):
    def __init__(self, dim, width, depth, classes):
        super().__init__()
        self.stem = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ScaleProbe:
    """Use as a context around one forward; afterwards .scale holds one number for each block."""

    def __init__(self, blocks):
        self.blocks = list(blocks)
        self.scale = [0.0] * len(self.blocks)

    def _note(self, i, module, inputs, output):
        self.scale[i] = output.detach().abs().flatten().quantile(0.99).item()

    def __enter__(self):
        for i, block in enumerate(self.blocks):
            self.handle = block.register_forward_hook(partial(self._note, i))
        return self

    def __exit__(self, *exc):
        self.handle.remove()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(10)
    x = torch.randn(960, 16, generator=g)
    y = (x[:, :4].prod(1) > 0).long() + 2 * (x[:, 5] > x[:, 6]).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=24, sampler=sampler)
    net = DDP(Tower(16, 64, depth=8, classes=4))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    probe = ScaleProbe(net.module.blocks)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            with probe:
                logits = net(xb)
            loss = F.cross_entropy(logits, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}  largest scale {max(probe.scale):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
