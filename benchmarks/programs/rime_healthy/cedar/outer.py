"""Outer loop: the average of the workers' displacement is the outer gradient."""
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class OuterLoop:
    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.anchor = parameters_to_vector(model.parameters()).detach().clone()
        self.opt = torch.optim.SGD([self.anchor], lr=lr, momentum=momentum, nesterov=True)
        self.rounds = 0

    @torch.no_grad()
    def sync(self):
        delta = self.anchor - parameters_to_vector(self.model.parameters())
        dist.all_reduce(delta)
        delta.div_(dist.get_world_size())
        self.anchor.grad = delta
        self.opt.step()
        vector_to_parameters(self.anchor.clone(), self.model.parameters())
        self.rounds += 1
        return delta.norm().item()
