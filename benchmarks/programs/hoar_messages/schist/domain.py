import torch
import torch.distributed as dist


class Strip:
    """A strip of a 2-d field, with one halo row above and below."""

    def __init__(self, rows, cols):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.up = self.rank - 1 if self.rank > 0 else None
        self.down = self.rank + 1 if self.rank < self.world - 1 else None
        self.u = torch.zeros(rows + 2, cols)

    def exchange(self):
        ops, top, bottom = [], torch.empty_like(self.u[0]), torch.empty_like(self.u[-1])
        if self.up is not None:
            ops += [dist.P2POp(dist.isend, self.u[1].clone(), self.up), dist.P2POp(dist.irecv, top, self.up)]
        if self.down is not None:
            ops += [dist.P2POp(dist.isend, self.u[-2].clone(), self.down), dist.P2POp(dist.irecv, bottom, self.down)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if self.up is not None:
            self.u[0] = top
        if self.down is not None:
            self.u[-1] = bottom

    def advance(self, flow, dt):
        self.exchange()
        du = self.u[2:] - 2 * self.u[1:-1] + self.u[:-2]
        lateral = torch.roll(self.u[1:-1], 1, 1) - self.u[1:-1]
        self.u[1:-1] += dt * (0.2 * du + flow * lateral)
