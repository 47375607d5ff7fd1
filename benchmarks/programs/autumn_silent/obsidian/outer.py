import torch
import torch.distributed as dist


class OuterOptimizer:
    """Nesterov momentum on the averaged displacement of the workers (local-update training)."""

    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        for a in self.anchor:
            dist.broadcast(a, src=0)
        self.optimizer = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)
        self.pull()

    @torch.no_grad()
    def pull(self):
        for p, a in zip(self.model.parameters(), self.anchor):
            p.copy_(a)

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        drift = torch.zeros(())
        for p, a in zip(self.model.parameters(), self.anchor):
            delta = a - p
            drift += delta.pow(2).sum()
            dist.all_reduce(delta)
            a.grad = delta / world
        self.optimizer.step()
        self.pull()
        return drift.sqrt().item()
