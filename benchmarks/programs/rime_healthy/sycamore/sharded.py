"""Sharded optimizer by hand: half-precision reduce-scatter while backward runs, all-gather after the step."""
import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params):
        self.params, self.world, self.rank = params, dist.get_world_size(), dist.get_rank()
        n = sum(p.numel() for p in params)
        self.size = -(-n // self.world) * self.world
        self.flat = torch.zeros(self.size)
        at = 0
        for p in params:
            self.flat[at:at + p.numel()].copy_(p.data.flatten())
            p.data = self.flat[at:at + p.numel()].view_as(p)
            at += p.numel()
        k = self.size // self.world
        self.shard = self.flat[self.rank * k:(self.rank + 1) * k].clone().requires_grad_()
        self.wire, self.out = torch.zeros(self.size, dtype=torch.float16), torch.zeros(k, dtype=torch.float16)
        self.ready, self.work = 0, None


class ShardedTrainer:
    def __init__(self, model, groups, make_opt, scale=2.0 ** 14, growth=60):
        self.buckets = [Bucket(list(g.parameters())) for g in groups]
        self.opt = make_opt([b.shard for b in self.buckets])
        self.scale, self.growth, self.good, self.skipped = scale, growth, 0, 0
        for b in self.buckets:
            for p in b.params:
                p.register_post_accumulate_grad_hook(self._hook(b))

    def _hook(self, b):
        def done(_):
            b.ready += 1
            if b.ready == len(b.params):
                at = 0
                for p in b.params:
                    b.wire[at:at + p.numel()].copy_(p.grad.flatten())
                    at += p.numel()
                    p.grad = None
                b.work = dist.reduce_scatter_tensor(b.out, b.wire, async_op=True)
        return done

    def backward(self, loss):
        (loss * (self.scale / dist.get_world_size())).backward()

    def step(self, max_norm=1.0):
        for b in self.buckets:
            b.work.wait()
            b.ready = 0
            b.shard.grad = b.out.float() / self.scale
        sq = sum(b.shard.grad.pow(2).sum() for b in self.buckets).view(1)
        dist.all_reduce(sq)
        norm = sq.sqrt().item()
        if norm != norm or norm == float("inf"):
            self.scale, self.good = self.scale / 2, 0
            self.skipped += 1
            return None
        for b in self.buckets:
            b.shard.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
        self.opt.step()
        works = [dist.all_gather_into_tensor(b.flat, b.shard.detach(), async_op=True) for b in self.buckets]
        self.good += 1
        if self.good % self.growth == 0:
            self.scale *= 2
        for w in works:
            w.wait()
        return norm
