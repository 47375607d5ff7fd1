"""Parameters as one flat vector, cut into equal pieces: every rank owns one piece."""
import torch
import torch.distributed as dist


class FlatShards:
    def __init__(self, model):
        self.params = list(model.parameters())
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        total = sum(p.numel() for p in self.params)
        self.piece = (total + self.world - 1) // self.world
        self.flat = torch.zeros(self.piece * self.world)
        self.flat_grad = torch.zeros_like(self.flat)
        self.offsets = []
        at = 0
        for p in self.params:
            self.flat[at:at + p.numel()].copy_(p.detach().reshape(-1))
            p.data = self.flat[at:at + p.numel()].view_as(p)
            self.offsets.append(at)
            at += p.numel()
        lo = self.rank * self.piece
        hi = lo + self.piece
        self.mine = self.flat[lo:hi].clone()
        self.local = []
        for p, at in zip(self.params, self.offsets):
            a, b = max(at, lo), min(at + p.numel(), hi)
            if a < b:
                view = torch.nn.Parameter(self.mine[a - lo:b - lo], requires_grad=p.requires_grad)
                self.local.append((view, a - lo, b - lo))

    def optim_params(self):
        return [view for view, _, _ in self.local]

    def reduce_gradients(self):
        for p, at in zip(self.params, self.offsets):
            part = self.flat_grad[at:at + p.numel()]
            if p.grad is None:
                part.zero_()
            else:
                part.copy_(p.grad.reshape(-1))
                p.grad = None
        out = torch.empty(self.piece)
        dist.reduce_scatter_tensor(out, self.flat_grad)
        out /= self.world
        for view, a, b in self.local:
            view.grad = out[a:b] if view.requires_grad else None

    def publish(self):
        dist.all_gather_into_tensor(self.flat, self.mine)
