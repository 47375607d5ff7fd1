import torch
import torch.distributed as dist
import torch.nn as nn
from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten


class KFAC:
    """Kronecker-factored preconditioner; factor inverses are divided over ranks by cost and then shared."""

    def __init__(self, model, damping=0.01, decay=0.95, factor_every=5, inverse_every=20, kl_clip=1e-2):
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.damping, self.decay, self.kl_clip = damping, decay, kl_clip
        self.factor_every, self.inverse_every = factor_every, inverse_every
        self.a = [torch.eye(l.in_features + 1) for l in self.layers]
        self.g = [torch.eye(l.out_features) for l in self.layers]
        self.inv = [f.clone() for pair in zip(self.a, self.g) for f in pair]
        load = [0] * self.world
        self.owner = [0] * len(self.inv)
        for i in sorted(range(len(self.inv)), key=lambda i: -len(self.inv[i])):
            r = load.index(min(load))
            self.owner[i], load[r] = r, load[r] + len(self.inv[i]) ** 3
        self.t, self.stash = 0, {}
        for i, l in enumerate(self.layers):
            l.register_forward_pre_hook(lambda m, inp, i=i: self._save_a(i, inp[0]))
            l.register_full_backward_hook(lambda m, gi, go, i=i: self._save_g(i, go[0]))

    def _save_a(self, i, x):
        if torch.is_grad_enabled() and self.t % self.factor_every == 0:
            x = torch.cat([x.detach(), x.new_ones(len(x), 1)], 1)
            self.stash["a", i] = x.T @ x / len(x)

    def _save_g(self, i, gy):
        if self.t % self.factor_every == 0:
            gy = gy.detach() * len(gy)
            self.stash["g", i] = gy.T @ gy / len(gy)

    @torch.no_grad()
    def precondition(self, lr):
        if self.t % self.factor_every == 0:
            new = [self.stash[k, i] for i in range(len(self.layers)) for k in "ag"]
            flat = flatten(new)
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            run = [f for pair in zip(self.a, self.g) for f in pair]
            for f, n in zip(run, unflatten(flat, new)):
                f.lerp_(n, 1 - self.decay)
            self.stash.clear()
        if self.t % self.inverse_every == 0:
            self._refresh()
        self.t += 1
        dot = 0.0
        for i, l in enumerate(self.layers):
            full = torch.cat([l.weight.grad, l.bias.grad.unsqueeze(1)], 1)
            pre = self.inv[2 * i + 1] @ full @ self.inv[2 * i]
            dot = dot + (pre * full).sum()
            l.weight.grad.copy_(pre[:, :-1])
            l.bias.grad.copy_(pre[:, -1])
        nu = (self.kl_clip / (lr ** 2 * dot.abs() + 1e-12)).sqrt().clamp(max=1.0)
        for l in self.layers:
            l.weight.grad.mul_(nu)
            l.bias.grad.mul_(nu)

    def _refresh(self):
        run = [f for pair in zip(self.a, self.g) for f in pair]
        works = []
        for i, f in enumerate(run):
            if self.owner[i] == self.rank:
                eye = torch.eye(len(f))
                self.inv[i] = torch.cholesky_inverse(torch.linalg.cholesky(f + self.damping ** 0.5 * eye))
        for i in range(len(run)):
            works.append(dist.broadcast(self.inv[i], src=self.owner[i], async_op=True))
        for w in works:
            w.wait()
