import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class DiLoCo:
    """Douillard et al. 2023: local AdamW for `inner_steps`, then Nesterov SGD on the mean displacement."""

    def __init__(self, model, inner_steps, outer_lr=0.7, outer_momentum=0.6):
        self.model = model
        self.inner_steps = inner_steps
        vec = parameters_to_vector(model.parameters()).detach().clone()
        dist.broadcast(vec, src=0)
        self.anchor = torch.nn.Parameter(vec)
        self.outer = torch.optim.SGD([self.anchor], lr=outer_lr, momentum=outer_momentum, nesterov=True)
        self.world = dist.get_world_size()
        self.rounds = 0
        self._push()

    @torch.no_grad()
    def _push(self):
        vector_to_parameters(self.anchor.detach().clone(), self.model.parameters())

    @torch.no_grad()
    def maybe_sync(self, inner_step):
        if (inner_step + 1) % self.inner_steps:
            return False
        delta = self.anchor.detach() - parameters_to_vector(self.model.parameters())
        dist.all_reduce(delta)
        self.anchor.grad = delta.div_(self.world)
        self.outer.step()
        self.outer.zero_grad(set_to_none=True)
        self._push()
        self.rounds += 1
        return True

    def state_dict(self):
        return {"anchor": self.anchor.detach(), "outer": self.outer.state_dict(), "rounds": self.rounds}
