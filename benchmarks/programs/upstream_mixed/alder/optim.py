"""Adam whose step size is estimated from the distance travelled so far."""
import torch
import torch.distributed as dist


class DistanceAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, betas=(0.9, 0.99), d0=1e-3, growth=1.02, sharded=True):
        super().__init__(params, dict(lr=lr, betas=betas))
        self.d = d0
        self.growth = growth
        self.numerator = 0.0
        self.sharded = sharded
        self.k = 0

    @torch.no_grad()
    def step(self):
        numerator, denominator = 0.0, 0.0
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["p0"] = p.detach().clone()
                    state["s"] = torch.zeros_like(p)
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                numerator += self.d * torch.dot(p.grad.flatten(), (state["p0"] - p).flatten()).item()
                state["m"].lerp_(p.grad, 1 - b1)
                state["v"].lerp_(p.grad * p.grad, 1 - b2)
                state["s"].mul_(b2).add_(p.grad, alpha=self.d * (1 - b2))
                denominator += state["s"].abs().sum().item()

        if denominator == 0:
            return

        if self.sharded:
            totals = torch.tensor([numerator, denominator], dtype=torch.float64)
            dist.all_reduce(totals)
            numerator, denominator = totals.tolist()

        self.numerator = 0.9 * self.numerator + 0.1 * numerator
        estimate = self.numerator / denominator
        self.d = max(self.d, min(estimate, self.d * self.growth))
        self.k += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                p.sub_(group["lr"] * self.d * state["m"] / (state["v"].sqrt() + 1e-8))
