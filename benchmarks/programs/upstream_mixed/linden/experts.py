import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd


class Expert(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class ExpertParallel(nn.Module):
    """One expert per process; tokens travel to their expert and back."""

    def __init__(self, width, hidden):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.gate = nn.Linear(width, self.world, bias=False)
        state = torch.random.get_rng_state()
        torch.manual_seed(1000 + self.rank)
        self.expert = Expert(width, hidden)
        torch.random.set_rng_state(state)
        for p in self.expert.parameters():
            p.expert_parallel = True

    def forward(self, x):
        probs = torch.softmax(self.gate(x), dim=-1)
        score, choice = probs.max(-1)
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=self.world)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send, receive = send.tolist(), receive.tolist()
        tokens = all_to_all_single_autograd(x[order].contiguous(), receive, send, dist.group.WORLD)
        tokens = self.expert(tokens)
        back = all_to_all_single_autograd(tokens, send, receive, dist.group.WORLD)
        out = torch.zeros_like(x).index_copy(0, order, back)
        return x + out * score.unsqueeze(-1)


def reduce_gradients(model):
    """Shared parameters: mean over the processes. Experts have seen everyone's tokens already."""
    world = dist.get_world_size()
    shared = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if getattr(p, "expert_parallel", False):
            p.grad.div_(world)
        else:
            shared.append(p)
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in shared:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
