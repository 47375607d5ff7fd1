"""Gradient descent with backtracking, for losses spread over several processes."""
import torch
import torch.distributed as dist


class SpreadLoss:
    """Mean loss and mean gradient at a flat point; counts its calls."""

    def __init__(self, model, closure):
        self.params = [p for p in model.parameters()]
        self.sizes = [p.numel() for p in self.params]
        self.closure = closure
        self.world = dist.get_world_size()
        self.calls = 0

    def point(self):
        return torch.cat([p.detach().flatten() for p in self.params])

    @torch.no_grad()
    def place(self, flat):
        for p, piece in zip(self.params, flat.split(self.sizes)):
            p.copy_(piece.view_as(p))

    def __call__(self, flat):
        self.calls += 1
        self.place(flat)
        loss = self.closure()
        grads = torch.autograd.grad(loss, self.params)
        packed = torch.cat([g.flatten() for g in grads] + [loss.detach().view(1)])
        dist.all_reduce(packed)
        packed /= self.world
        return packed[-1].item(), packed[:-1]


def descend(problem, budget, step=1.0, shrink=0.5, grow=1.6, slope=0.3, report=None):
    """Armijo backtracking until `budget` evaluations are used."""
    w = problem.point()
    f, g = problem(w)
    turns = 0
    while problem.calls < budget:
        drop = slope * g.dot(g).item()
        while True:
            trial = w - step * g
            ft, gt = problem(trial)
            if ft <= f - step * drop or problem.calls >= budget:
                break
            step *= shrink
        w, f, g = trial, ft, gt
        turns += 1
        if report is not None:
            report(turns, problem.calls, f, step)
        step *= grow
    problem.place(w)
    return w, f, turns
