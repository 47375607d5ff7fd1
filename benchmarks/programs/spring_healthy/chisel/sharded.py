import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params, world, rank):
        self.params = params
        n = sum(p.numel() for p in params)
        self.size = (n + world - 1) // world * world
        self.cut = slice(rank * self.size // world, (rank + 1) * self.size // world)
        self.data = torch.zeros(self.size)
        at = 0
        self.where = []
        for p in params:
            view = self.data[at:at + p.numel()].view_as(p)
            view.copy_(p.detach())
            p.data = view
            self.where.append((at, p.numel()))
            at += p.numel()
        self.master = self.data[self.cut]
        self.m, self.v = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.grad = None
        self.waiting = len(params)


class ShardedAdam:
    """Gradients and Adam moments are cut over ranks, weights are whole on each of them.

    As soon as a bucket has all of its gradients it is reduced and scattered, and the
    full gradients are let go.
    """

    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8, bucket_elems=40_000):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        groups, cur, n = [], [], 0
        for p in reversed(list(params)):
            cur.append(p)
            n += p.numel()
            if n >= bucket_elems:
                groups.append(cur)
                cur, n = [], 0
        if cur:
            groups.append(cur)
        self.buckets = [Bucket(g, self.world, self.rank) for g in groups]
        self.inflight = []
        self.next_bucket = 0
        for b in self.buckets:
            for p in b.params:
                p.register_post_accumulate_grad_hook(self._make_hook(b))

    def _make_hook(self, bucket):
        def hook(_):
            bucket.waiting -= 1
            # launched in bucket order on every rank, whatever order autograd finishes in
            while self.next_bucket < len(self.buckets) and self.buckets[self.next_bucket].waiting == 0:
                self._launch(self.buckets[self.next_bucket])
                self.next_bucket += 1
        return hook

    def _launch(self, b):
        flat = torch.zeros(b.size)
        for p, (at, n) in zip(b.params, b.where):
            flat[at:at + n].copy_(p.grad.reshape(-1))
            p.grad = None
        b.grad = torch.empty(b.size // self.world)
        self.inflight.append((dist.reduce_scatter_tensor(b.grad, flat, async_op=True), flat))

    @torch.no_grad()
    def step(self, max_norm=1.0):
        assert self.next_bucket == len(self.buckets)
        for work, _ in self.inflight:
            work.wait()
        self.inflight.clear()
        self.next_bucket = 0
        sq = torch.zeros(1)
        for b in self.buckets:
            b.grad.div_(self.world)
            sq += b.grad.square().sum()
            b.waiting = len(b.params)
        dist.all_reduce(sq)
        coef = (max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0)
        self.t += 1
        c1, c2 = 1 - self.betas[0] ** self.t, 1 - self.betas[1] ** self.t
        for b in self.buckets:
            g = b.grad * coef
            b.grad = None
            b.m.lerp_(g, 1 - self.betas[0])
            b.v.lerp_(g * g, 1 - self.betas[1])
            b.master.sub_(self.lr * (b.m / c1) / ((b.v / c2).sqrt() + self.eps))
            dist.all_gather_into_tensor(b.data, b.master.clone())
        return sq.sqrt().item()

    def state_dict(self):
        return {"t": self.t, "shards": [(b.master.clone(), b.m.clone(), b.v.clone()) for b in self.buckets]}

    @torch.no_grad()
    def load_state_dict(self, sd):
        self.t = sd["t"]
        for b, (w, m, v) in zip(self.buckets, sd["shards"]):
            b.master.copy_(w)
            b.m.copy_(m)
            b.v.copy_(v)
            dist.all_gather_into_tensor(b.data, b.master.clone())
