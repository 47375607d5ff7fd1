import copy


import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class MoCo(nn.Module):
    def __init__(self, dim=12, queue=64, m=0.95, temp=0.2):
        super().__init__()
        self.m, self.temp = m, temp
        self.q = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, dim))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, dim, generator=torch.Generator().manual_seed(5)), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def momentum_update(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.mul_(self.m).add_(a, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys)
        keys = torch.cat(parts)
        self.queue[self.ptr:self.ptr + len(keys)] = keys
        self.ptr = (self.ptr + len(keys)) % len(self.queue)

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            self.momentum_update()
            k = F.normalize(self.k(b), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().t()
        loss = F.cross_entropy(torch.cat([pos, neg], 1) / self.temp, torch.zeros(len(q), dtype=torch.long))
        return loss, k


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(MoCo(), broadcast_buffers=False)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(1)) @ torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    ds = TensorDataset(x)
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 8, sampler=sampler)
    torch.manual_seed(1000 + dist.get_rank())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (bx,) in loader:
            loss, keys = model(bx + 0.2 * torch.randn_like(bx), bx + 0.2 * torch.randn_like(bx))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            model.module.enqueue(keys)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
