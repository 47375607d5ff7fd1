import torch
import torch.distributed as dist


class ShardedTable:
    """Row-sharded embedding (row % world). Forward fetches rows, `apply_grads` pushes row gradients back to the
    owners, which run Adagrad in place; nothing of the table is ever replicated."""

    def __init__(self, rows, dim, lr, seed):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.dim, self.lr = dim, lr
        g = torch.Generator().manual_seed(seed)
        full = torch.randn(rows, dim, generator=g) * 0.05
        self.weight = full[self.rank :: self.world].clone()
        self.acc = torch.full((len(self.weight),), 0.01)

    def _exchange(self, rows, send, recv):
        out = rows.new_empty(sum(recv), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    def lookup(self, ids):
        uniq, inverse = ids.unique(return_inverse=True)
        owner = uniq % self.world
        order = owner.argsort(stable=True)
        send = torch.bincount(owner, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        wanted = self._exchange(uniq[order] // self.world, send, recv)
        rows = self._exchange(self.weight[wanted], recv, send)
        leaf = torch.empty_like(rows)
        leaf[order] = rows
        leaf.requires_grad_()
        self._ctx = (leaf, order, wanted, send, recv)
        return leaf[inverse]

    @torch.no_grad()
    def apply_grads(self):
        leaf, order, wanted, send, recv = self._ctx
        self._ctx = None
        got = self._exchange(leaf.grad[order], send, recv) / self.world
        rows, inv = wanted.unique(return_inverse=True)
        g = torch.zeros(len(rows), self.dim).index_add_(0, inv, got)
        self.acc[rows] += g.square().mean(1)
        self.weight[rows] -= self.lr * g / self.acc[rows].sqrt().unsqueeze(1)
