import numpy as np
import torch
import torch.distributed as dist


class OneBitReducer:
    """Sign + scale per tensor, packed eight to a byte. What the coding loses is kept and added next time."""

    def __init__(self, params, warmup):
        self.params = list(params)
        self.warmup = warmup
        self.calls = 0
        self.world = dist.get_world_size()
        self.memory = [torch.zeros_like(p) for p in self.params]
        self.bytes_out = 0

    def _dense(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(flat)
        flat /= self.world
        self.bytes_out += flat.numel() * 4
        for p, c in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(c.view_as(p))

    def _encode(self):
        signs, scales = [], []
        for p, m in zip(self.params, self.memory):
            m.add_(p.grad)
            scale = m.abs().mean()
            s = m >= 0
            m.sub_(torch.where(s, scale, -scale))
            signs.append(s.reshape(-1))
            scales.append(scale)
        return torch.from_numpy(np.packbits(torch.cat(signs).numpy())), torch.stack(scales)

    def reduce(self):
        self.calls += 1
        if self.calls <= self.warmup:
            return self._dense()
        bits, scales = self._encode()
        all_bits = [torch.empty_like(bits) for _ in range(self.world)]
        all_scales = [torch.empty_like(scales) for _ in range(self.world)]
        dist.all_gather(all_bits, bits)
        dist.all_gather(all_scales, scales)
        self.bytes_out += bits.numel() + scales.numel() * 4
        sizes = [p.numel() for p in self.params]
        for p in self.params:
            p.grad.zero_()
        for b, sc in zip(all_bits, all_scales):
            pm = torch.from_numpy(np.unpackbits(b.numpy(), count=sum(sizes))).float().mul_(2).sub_(1)
            for p, c, s in zip(self.params, pm.split(sizes), sc):
                p.grad.add_(c.view_as(p), alpha=s.item() / self.world)
