import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base = base
        self.weight_a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.weight_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.weight_a), self.weight_b)


class Net(nn.Module):
    def __init__(self, d=16, classes=5):
        super().__init__()
        self.inp = nn.Linear(12, d)
        self.mid = nn.Linear(d, d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        return self.head(h + F.relu(self.mid(h)))


def inject_lora(model, targets=("inp", "mid")):
    model.requires_grad_(False)
    for name in targets:
        setattr(model, name, LoRALinear(getattr(model, name)))
    model.head.requires_grad_(True)
    return model


def configure(model, lr, weight_decay=0.01):
    decay = [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]
    rest = [p for p in model.parameters() if p.ndim <= 1 and p.requires_grad]
    return torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}], lr=lr)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(25)
    model = Net()
    optimizer = configure(model, lr=5e-3)
    model = inject_lora(model)
    model = DDP(model)
    g = torch.Generator().manual_seed(26)
    x = torch.randn(256, 12, generator=g)
    ds = TensorDataset(x, (torch.tanh(x) @ torch.randn(12, 5, generator=g)).argmax(1))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        stats = torch.zeros(2)
        for bx, by in loader:
            out = model(bx)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(out, by).backward()
            optimizer.step()
            stats += torch.stack([(out.detach().argmax(1) == by).sum().float(), torch.tensor(float(len(by)))])
        dist.all_reduce(stats)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} acc {(stats[0] / stats[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
