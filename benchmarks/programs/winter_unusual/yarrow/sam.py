import torch


class MSAM:
    """Sharpness-aware minimisation with per-worker ascent (m-sharpness, Foret et al. 2021, sec. 4.1): each rank climbs
    along the gradient of its own micro batch, the descent gradient is the average of those taken at the climbed points."""

    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho
        self.home = [torch.empty_like(p) for p in self.params]

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.params]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_copy_(self.home, [p.detach() for p in self.params])
        torch._foreach_add_([p.data for p in self.params], torch._foreach_mul(grads, self.rho / (norm + 1e-12)))
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def descend(self):
        torch._foreach_copy_([p.data for p in self.params], self.home)
        self.base.step()
        self.base.zero_grad(set_to_none=True)
