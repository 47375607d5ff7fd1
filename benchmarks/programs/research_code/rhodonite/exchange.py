import torch
import torch.distributed as dist


def broadcast_module(m):
    for t in list(m.parameters()) + list(m.buffers()):
        dist.broadcast(t.data, 0)


class GradientExchange:
    """Averages .grad over ranks in buckets, all of them in flight at once."""

    def __init__(self, params, bucket_elems):
        self.buckets, cur, n = [], [], 0
        for p in reversed(params):
            cur.append(p)
            n += p.numel()
            if n >= bucket_elems:
                self.buckets.append(cur)
                cur, n = [], 0
        if cur:
            self.buckets.append(cur)
        self.world = dist.get_world_size()

    @torch.no_grad()
    def run(self):
        flying = []
        for b in self.buckets:
            flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in b])
            flying.append((b, flat, dist.all_reduce(flat, async_op=True)))
        for b, flat, work in flying:
            work.wait()
            flat.div_(self.world)
            off = 0
            for p in b:
                n = p.numel()
                p.grad = flat[off:off + n].view_as(p)
                off += n


def scaler_step(scaler, opt, params, clip):
    """Unscale, clip, step. Gradients are already equal on the ranks, so every rank skips the same steps."""
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(params, clip)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    return norm.item(), scaler.get_scale() >= before
