import torch
import torch.distributed as dist


def greedy_owners(named_params, world):
    """Whole tensors are dealt to the least loaded process, biggest first."""
    load = [0] * world
    owners = {}
    for name, p in sorted(named_params, key=lambda kv: (-kv[1].numel(), kv[0])):
        r = min(range(world), key=lambda i: (load[i], i))
        owners[name] = r
        load[r] += p.numel()
    return owners, load


class OwnedAdamW:
    """Optimizer states live only on the owner of a tensor; updated weights are broadcast from there."""

    def __init__(self, model, lr, weight_decay):
        self.named = list(model.named_parameters())
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.owners, self.load = greedy_owners(self.named, self.world)
        for _, p in self.named:
            dist.broadcast(p.data, src=0)
        mine = [(n, p) for n, p in self.named if self.owners[n] == self.rank]
        decay = [p for n, p in mine if p.dim() > 1]
        plain = [p for n, p in mine if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.inner = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr)

    def set_lr(self, lr):
        for g in self.inner.param_groups:
            g["lr"] = lr

    def zero_grad(self):
        for _, p in self.named:
            p.grad = None

    @torch.no_grad()
    def step(self, max_norm):
        works = [dist.reduce(p.grad, dst=self.owners[n], async_op=True) for n, p in self.named]
        for w in works:
            w.wait()
        square = torch.zeros(())
        for n, p in self.named:
            if self.owners[n] == self.rank:
                p.grad.div_(self.world)
                square += p.grad.pow(2).sum()
            else:
                p.grad = None
        dist.all_reduce(square)
        norm = square.sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for n, p in self.named:
            if self.owners[n] == self.rank:
                p.grad.mul_(scale)
        self.inner.step()
        works = [dist.broadcast(p.data, src=self.owners[n], async_op=True) for n, p in self.named]
        for w in works:
            w.wait()
        return norm.item()
