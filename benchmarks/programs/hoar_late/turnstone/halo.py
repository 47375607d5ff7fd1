import torch
import torch.distributed as dist


class Halo:
    """Exchanges one boundary row with the neighbours above and below."""

    def __init__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.up = rank - 1 if rank > 0 else None
        self.down = rank + 1 if rank < world - 1 else None

    def exchange(self, u):
        ops = []
        if self.up is not None:
            ops.append(dist.isend(u[1].contiguous(), self.up))
        if self.down is not None:
            ops.append(dist.isend(u[-2].contiguous(), self.down))
        for peer, row in ((self.up, 0), (self.down, -1)):
            if peer is not None:
                buf = torch.empty_like(u[row])
                dist.recv(buf, peer)
                u[row] = buf
        for op in ops:
            op.wait()
