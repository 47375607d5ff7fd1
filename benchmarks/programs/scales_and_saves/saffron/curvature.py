import torch


class Sharpness:
    """Largest Hessian eigenvalue of the training loss by power iteration."""

    def __init__(self, params, iterations=12, seed=0):
        self.params = list(params)
        g = torch.Generator().manual_seed(seed)
        self.v = [torch.randn(p.shape, generator=g) for p in self.params]
        self.iterations = iterations

    def combine(self, hv):
        return hv

    def measure(self, loss_fn):
        grads = torch.autograd.grad(loss_fn(), self.params, create_graph=True)
        value = 0.0
        for _ in range(self.iterations):
            norm = torch.sqrt(sum((v * v).sum() for v in self.v))
            self.v = [v / norm for v in self.v]
            hv = torch.autograd.grad(grads, self.params, grad_outputs=self.v, retain_graph=True)
            hv = self.combine([h.detach() for h in hv])
            value = sum((h * v).sum() for h, v in zip(hv, self.v)).item()
            self.v = hv
        return value
