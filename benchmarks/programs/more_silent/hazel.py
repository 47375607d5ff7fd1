"""ZeRO-1 by hand: gradients are averaged everywhere, each tensor is stepped by one owner and sent round."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class OwnedAdamW:
    def __init__(self, model, lr, weight_decay=0.05, clip=1.0):
        self.rank, self.world, self.clip = dist.get_rank(), dist.get_world_size(), clip
        self.params = list(model.parameters())
        self.owner = self._assign()
        mine = [p for p, o in zip(self.params, self.owner) if o == self.rank]
        self.local = torch.optim.AdamW(mine, lr=lr, weight_decay=weight_decay)
        for p in self.params:
            dist.broadcast(p.data, src=0)

    def _assign(self):
        """largest tensor first, to the rank that has least so far"""
        load, owner = [0] * self.world, [0] * len(self.params)
        for i in sorted(range(len(self.params)), key=lambda i: (-self.params[i].numel(), i)):
            owner[i] = load.index(min(load))
            load[owner[i]] += self.params[i].numel()
        return owner

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= self.world
        norm = torch.nn.utils.clip_grad_norm_(self.params, self.clip)   # all of them, not only ours
        self.local.step()
        for p, o in zip(self.params, self.owner):
            dist.broadcast(p.data, src=o)
        return norm


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(60 + rank)
    g = torch.Generator().manual_seed(15)
    x = torch.randn(960, 18, generator=g)
    y = (x @ torch.randn(18, 7, generator=g)).argmax(1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    model = nn.Sequential(nn.Linear(18, 72), nn.GELU(), nn.Dropout(0.1), nn.Linear(72, 48), nn.GELU(), nn.Linear(48, 7))
    opt = OwnedAdamW(model, lr=3e-3)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        model.train()
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            norm = opt.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f} (norm {norm:.2f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
