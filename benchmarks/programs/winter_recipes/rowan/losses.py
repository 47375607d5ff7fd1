import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class GatherLayer(torch.autograd.Function):
    """Gather features from every process, keeping the graph alive."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]


class ClipLoss(nn.Module):
    """Contrastive loss; with ``local_loss`` each process only scores its own rows
    against the global batch, which keeps the logits at B x (W * B)."""

    def __init__(self, local_loss=True, gather_with_grad=True):
        super().__init__()
        self.local_loss = local_loss
        self.gather_with_grad = gather_with_grad

    def gather(self, x):
        if self.gather_with_grad:
            return torch.cat(GatherLayer.apply(x))
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.detach())
        if not self.local_loss:
            out[dist.get_rank()] = x
        return torch.cat(out)

    def forward(self, img, txt, scale):
        all_img, all_txt = self.gather(img), self.gather(txt)
        if self.local_loss:
            logits_i = scale * img @ all_txt.t()
            logits_t = scale * txt @ all_img.t()
            labels = torch.arange(len(img)) + dist.get_rank() * len(img)
        else:
            logits_i = scale * all_img @ all_txt.t()
            logits_t = logits_i.t()
            labels = torch.arange(len(all_img))
        return (F.cross_entropy(logits_i, labels) + F.cross_entropy(logits_t, labels)) / 2
