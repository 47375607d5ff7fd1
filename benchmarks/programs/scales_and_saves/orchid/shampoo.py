"""Kronecker-factored preconditioning; the matrix roots are dealt out to the processes.

Every process keeps all statistics (they come from averaged gradients, so they are equal), but
process r computes the inverse roots of every world-th block only and sends them to the others.
"""
import torch
import torch.distributed as dist


@torch.no_grad()
def inverse_root(mat, power, eps):
    w, q = torch.linalg.eigh(mat + eps * torch.eye(len(mat)))
    return (q * w.clamp_min(eps).pow(-1.0 / power)) @ q.t()


class DealtShampoo(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, every=10, eps=1e-4, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, eps=eps, weight_decay=weight_decay))
        self.rank, self.world, self.every, self.count = dist.get_rank(), dist.get_world_size(), every, 0
        self.blocks = []
        for group in self.param_groups:
            for p in group["params"]:
                st = self.state[p]
                st["momentum"] = torch.zeros_like(p)
                if p.dim() >= 2:
                    rows, cols = p.shape[0], p[0].numel()
                    for name, n in (("L", rows), ("R", cols)):
                        st[name] = torch.zeros(n, n)
                        st[name + "_root"] = torch.eye(n)
                        self.blocks.append((st, name, group["eps"]))
        # the largest first, in turns
        self.blocks.sort(key=lambda b: -len(b[0][b[1]]))

    @torch.no_grad()
    def refresh(self):
        for i, (st, name, eps) in enumerate(self.blocks):
            if i % self.world == self.rank:
                st[name + "_root"].copy_(inverse_root(st[name], 4, eps))
        works = [dist.broadcast(st[name + "_root"], src=i % self.world, async_op=True)
                 for i, (st, name, _) in enumerate(self.blocks)]
        for w in works:
            w.wait()

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() >= 2:
                    g = p.grad.reshape(p.shape[0], -1)
                    self.state[p]["L"].lerp_(g @ g.t(), 0.05)
                    self.state[p]["R"].lerp_(g.t() @ g, 0.05)
        if self.count % self.every == 1:
            self.refresh()
        for group in self.param_groups:
            for p in group["params"]:
                st, g = self.state[p], p.grad
                if p.dim() >= 2:
                    pre = st["L_root"] @ g.reshape(p.shape[0], -1) @ st["R_root"]
                    g = (pre * (g.norm() / pre.norm().clamp_min(1e-12))).view_as(p)
                st["momentum"].mul_(group["momentum"]).add_(g)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(st["momentum"], alpha=group["lr"])
