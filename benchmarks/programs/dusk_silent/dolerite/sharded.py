"""Optimizer-state sharding: every rank owns one contiguous piece of the flattened parameters."""
import torch
import torch.distributed as dist


class FlatShard:
    def __init__(self, model, align=64):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        params = [p for p in model.parameters() if p.requires_grad]
        numel = sum(p.numel() for p in params)
        unit = self.world * align
        self.flat = torch.zeros((numel + unit - 1) // unit * unit)
        self.grad = torch.zeros_like(self.flat)
        offset = 0
        for p in params:
            view = self.flat[offset:offset + p.numel()].view_as(p)
            view.copy_(p.detach())
            p.data = view
            p.grad = self.grad[offset:offset + p.numel()].view_as(p)
            offset += p.numel()
        dist.broadcast(self.flat, src=0)
        size = self.flat.numel() // self.world
        self.piece = self.flat[self.rank * size:(self.rank + 1) * size]
        self.master = torch.nn.Parameter(self.piece.clone())
        self.master.grad = torch.zeros_like(self.master)

    def zero_grad(self):
        self.grad.zero_()

    def reduce_gradients(self):
        dist.reduce_scatter_tensor(self.master.grad, self.grad)
        self.master.grad.div_(self.world)

    @torch.no_grad()
    def publish(self):
        """Bring the updated pieces to everybody."""
        dist.all_gather_into_tensor(self.flat, self.master.detach().contiguous())
