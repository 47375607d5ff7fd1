import torch
import torch.distributed as dist


class PCGrad:
    """Projects conflicting task gradients (Yu et al. 2020). The shared trunk's task gradients are first averaged over
    ranks as one [tasks, dim] matrix; the random task order must agree on all ranks, hence a common generator."""

    def __init__(self, shared, heads, seed):
        self.shared, self.heads = list(shared), [list(h) for h in heads]
        self.gen = torch.Generator().manual_seed(seed)
        self.sizes = [p.numel() for p in self.shared]
        self.conflicts = torch.zeros((), dtype=torch.long)

    def backward(self, losses):
        t = len(losses)
        rows, head_grads = [], []
        for i, loss in enumerate(losses):
            g = torch.autograd.grad(loss, self.shared + self.heads[i], retain_graph=i + 1 < t)
            rows.append(torch.cat([v.flatten() for v in g[: len(self.shared)]]))
            head_grads += g[len(self.shared) :]
        n = rows[0].numel()
        packed = torch.cat(rows + [v.flatten() for v in head_grads])
        dist.all_reduce(packed, op=dist.ReduceOp.AVG)
        raw = packed[: t * n].view(t, n)
        self._write(self.shared, self._project(raw), self.sizes)
        flat_heads = [p for h in self.heads for p in h]
        self._write(flat_heads, packed[t * n :], [p.numel() for p in flat_heads])

    def _project(self, raw):
        out = raw.clone()
        gram = raw.square().sum(1)
        for i in range(len(raw)):
            for j in torch.randperm(len(raw), generator=self.gen).tolist():
                if i == j:
                    continue
                dot = out[i] @ raw[j]
                if dot < 0:
                    out[i] -= dot / (gram[j] + 1e-12) * raw[j]
                    self.conflicts += 1
        return out.sum(0)

    @staticmethod
    def _write(params, flat, sizes):
        for p, v in zip(params, flat.split(sizes)):
            p.grad = v.view_as(p).clone()
