import dataclasses

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclasses.dataclass
class Stage:
    name: str
    train: tuple
    lr: float
    epochs: int
    batch: int


STAGES = [
    Stage("head", ("head",), 1e-2, 2, 8),
    Stage("top", ("head", "block2"), 3e-3, 2, 16),
    Stage("all", ("head", "block2", "block1"), 1e-3, 2, 32),
    Stage("polish", ("head",), 5e-4, 1, 32),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(24, 64), nn.LayerNorm(64), nn.GELU())
        self.block2 = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.block2(self.block1(x)))


def enter(net, stage):
    for name, child in net.named_children():
        child.requires_grad_(name in stage.train)
    model = DDP(net)
    opt = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=stage.lr)
    return model, opt


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    net = Net()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(512, 24, generator=g)
    ds = TensorDataset(x, (x @ torch.randn(24, 5, generator=g)).argmax(1))
    epoch = 0
    for stage in STAGES:
        model, opt = enter(net, stage)
        sampler = DistributedSampler(ds, seed=12)
        loader = DataLoader(ds, stage.batch, sampler=sampler)
        for _ in range(stage.epochs):
            sampler.set_epoch(epoch)
            for xb, yb in loader:
                loss = nn.functional.cross_entropy(model(xb), yb)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
            epoch += 1
        del model
        if rank == 0:
            n = sum(p.numel() for p in net.parameters() if p.requires_grad)
            print(f"{stage.name}: {n} trained, loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save(net.state_dict(), "stages.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
