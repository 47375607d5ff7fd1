"""Half precision weights with an fp32 master copy and an fp32 gradient buffer (ZeRO-0, no wrapper)."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Bf16Engine:
    def __init__(self, net: nn.Module, lr: float, accum: int):
        for p in net.parameters():
            dist.broadcast(p.data, src=0)
        self.master = [p.detach().clone().requires_grad_() for p in net.parameters()]
        self.grads = [torch.zeros_like(m) for m in self.master]
        self.net = net.to(torch.bfloat16)
        self.optim = torch.optim.AdamW(self.master, lr=lr, weight_decay=0.05)
        self.accum, self.micro = accum, 0

    def forward(self, x):
        return self.net(x.to(torch.bfloat16)).float()

    @property
    def at_boundary(self) -> bool:
        return (self.micro + 1) % self.accum == 0

    def backward(self, loss):
        (loss / self.accum).backward()
        self._epilogue()

    @torch.no_grad()
    def _epilogue(self):
        self._collect()
        if self.at_boundary:
            self._allreduce()

    def _collect(self):
        """Moves the low precision gradients over to the fp32 buffer."""
        for buf, p in zip(self.grads, self.net.parameters()):
            if p.grad is not None:
                buf.add_(p.grad.float())
                p.grad = None

    def _allreduce(self):
        flat = torch.cat([b.flatten() for b in self.grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for buf, part in zip(self.grads, flat.split([b.numel() for b in self.grads])):
            buf.copy_(part.view_as(buf))

    @torch.no_grad()
    def step(self):
        boundary = self.at_boundary
        self.micro += 1
        if not boundary:
            return False
        for m, buf in zip(self.master, self.grads):
            m.grad = buf
        self.optim.step()
        for p, m, buf in zip(self.net.parameters(), self.master, self.grads):
            p.copy_(m.to(torch.bfloat16))
            buf.zero_()
        return True


def rows(n=1536, dim=20, classes=6):
    g = torch.Generator().manual_seed(8)
    x = torch.randn(n, dim, generator=g)
    return TensorDataset(x, (x @ torch.randn(dim, classes, generator=g)).argmax(1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = rows()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))
    engine = Bf16Engine(net, lr=4e-3, accum=4)
    updates = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(engine.forward(x), y)
            engine.backward(loss)
            updates += engine.step()
        if rank == 0:
            print(f"epoch {epoch}: {updates} updates, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
