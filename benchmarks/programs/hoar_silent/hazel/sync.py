import torch
import torch.distributed as dist


def broadcast_model(model):
    with torch.no_grad():
        for t in list(model.parameters()) + list(model.buffers()):
            dist.broadcast(t, src=0)


def average_gradients(params, local_n):
    """Mean over all samples of all ranks; the losses are sums over the local batch."""
    params = [p for p in params if p.requires_grad]
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in params]
                     + [torch.tensor([float(local_n)])])
    dist.all_reduce(flat)
    flat, n = flat[:-1] / flat[-1], flat[-1]
    at = 0
    for p in params:
        p.grad = flat[at:at + p.numel()].view_as(p).clone()
        at += p.numel()
    return int(n)
