import torch
import torch.distributed as dist


def split(net):
    experts = list(net.moe.experts.parameters())
    own = {id(p) for p in experts}
    return [p for p in net.parameters() if id(p) not in own], experts


@torch.no_grad()
def finish_gradients(net, clip):
    """Shared parameters: mean over ranks. Experts already saw the tokens of every rank: only divide."""
    world = dist.get_world_size()
    shared, experts = split(net)
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in shared:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()
    local = torch.zeros(1)
    for p in experts:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad /= world
        local += p.grad.pow(2).sum()
    dist.all_reduce(local)
    norm = (flat.pow(2).sum() + local).sqrt().item()
    if norm > clip:
        for p in net.parameters():
            p.grad *= clip / norm
    return norm
