import contextlib

import torch


class Stat:
    def __init__(self):
        self.reset()

    def reset(self):
        self.n, self.dead, self.norm = 0, 0.0, 0.0

    def __call__(self, module, args, out):
        if not module.training:
            return
        o = out.detach()
        self.n += 1
        self.dead += (o <= 0).float().mean().item()
        self.norm += o.norm(dim=-1).mean().item()

    def line(self):
        n = max(self.n, 1)
        return f"dead {self.dead / n:.2f} norm {self.norm / n:.2f}"


@contextlib.contextmanager
def record(modules):
    store, handles = {}, []
    for name, m in modules.items():
        handles.append(m.register_forward_hook(lambda mod, a, out, name=name: store.setdefault(name, []).append(out.detach())))
    try:
        yield store
    finally:
        for h in handles:
            h.remove()


@torch.no_grad()
def effective_rank(x):
    s = torch.linalg.svdvals(x - x.mean(0))
    q = s / s.sum()
    return torch.exp(-(q * q.clamp_min(1e-9).log()).sum()).item()
