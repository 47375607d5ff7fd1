import torch
import torch.distributed as dist


class Engine:
    def __init__(self, model, lr, momentum=0.9, wd=1e-4):
        self.model = model
        self.dense = [p for p in model.parameters() if not getattr(p, "expert", False)]
        self.expert = [p for p in model.parameters() if getattr(p, "expert", False)]
        self.opt = torch.optim.SGD(self.dense + self.expert, lr=lr, momentum=momentum, weight_decay=wd)
        self.world = dist.get_world_size()

    def _reduce(self, params):
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(flat)
        flat.div_(self.world)
        off = 0
        for p in params:
            p.grad.copy_(flat[off:off + p.numel()].view_as(p))
            off += p.numel()

    def step(self, loss):
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        # expert weights have no copies on other ranks
        self._reduce(self.dense)
        self.opt.step()
