"""Sharpness-aware minimisation on CIFAR-shaped noise; each worker ascends along its own gradient (m-sharpness)."""
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p].pop("old_p")
        self.base_optimizer.step()
        self.zero_grad()


def bn_mode(model, frozen):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 0.0 if frozen else 0.1


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(build()) if torch.cuda.is_available() else build()
    ddp = DDP(net)
    opt = SAM(ddp.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9, rho=0.05)
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (320,), generator=g)
    x = torch.randn(320, 3, 20, 20, generator=g) + y.view(-1, 1, 1, 1) / 5
    ds = TensorDataset(x, y)
    sampler = DistributedSampler(ds, seed=4)
    loader = DataLoader(ds, batch_size=20, sampler=sampler, drop_last=True)
    ce = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            bn_mode(net, False)
            with ddp.no_sync():
                ce(ddp(xb), yb).backward()
            opt.first_step()
            bn_mode(net, True)
            loss = ce(ddp(xb), yb)
            loss.backward()
            opt.second_step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
