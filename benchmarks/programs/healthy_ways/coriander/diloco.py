import torch
import torch.distributed as dist


class OuterLoop:
    """Rare synchronisation: average of the local movements, Nesterov step on the shared weights."""

    def __init__(self, model, lr=0.7, momentum=0.9, fragments=2):
        self.params = list(model.parameters())
        for p in self.params:
            dist.broadcast(p.data, src=0)
        self.shared = [p.detach().clone().requires_grad_(True) for p in self.params]
        self.opt = torch.optim.SGD(self.shared, lr=lr, momentum=momentum, nesterov=True)
        self.fragments = fragments
        self.rounds = 0

    @torch.no_grad()
    def synchronise(self):
        world = dist.get_world_size()
        works = []
        for s, p in zip(self.shared, self.params):
            s.grad = s - p
            works.append(dist.all_reduce(s.grad, async_op=True))
        for w in works:
            w.wait()
        for s in self.shared:
            s.grad.div_(world)
        moved = torch.stack([s.grad.norm() for s in self.shared]).norm()
        self.opt.step()
        for s, p in zip(self.shared, self.params):
            p.copy_(s)
            s.grad = None
        self.rounds += 1
        return moved.item()

    def state_dict(self):
        return {"shared": [s.detach() for s in self.shared], "opt": self.opt.state_dict(), "rounds": self.rounds}
