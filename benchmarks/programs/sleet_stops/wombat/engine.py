import logging

import torch
import torch.distributed as dist

log = logging.getLogger("graph")


class Budget(RuntimeError):
    """A batch of graphs does not fit."""


def any_rank(flag):
    t = torch.tensor(int(flag))
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return bool(t.item())


class Engine:
    """Training steps that are tried again in smaller pieces when somebody runs out of room."""

    def __init__(self, net, opt, loss_fn, limit):
        self.net, self.opt, self.loss_fn, self.limit = net, opt, loss_fn, limit
        self.retries = 0

    def _forward(self, graphs):
        nodes = sum(len(g[0]) for g in graphs)
        if nodes > self.limit:
            raise Budget(f"{nodes} nodes, limit {self.limit}")
        return self.loss_fn(self.net, graphs)

    def _pieces(self, graphs, n):
        size = -(-len(graphs) // n)
        return [graphs[i:i + size] for i in range(0, len(graphs), size)]

    def _accumulate(self, graphs, n):
        total = 0.0
        for piece in self._pieces(graphs, n):
            loss = self._forward(piece) * len(piece) / len(graphs)
            loss.backward()
            total += loss.item()
        return total

    def step(self, graphs):
        n = 1
        while True:
            self.opt.zero_grad()
            error = None
            try:
                total = self._accumulate(graphs, n)
            except Budget as e:
                error = e
                log.info("rank %d in %d pieces: %s", dist.get_rank(), n, e)
            if not any_rank(error is not None):
                break
            n *= 2
            self.retries += 1
            if n > len(graphs):
                raise RuntimeError("a single graph is over the limit") from error
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()
        return total
