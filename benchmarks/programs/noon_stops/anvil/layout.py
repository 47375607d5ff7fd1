import torch
import torch.distributed as dist


class Layout:
    """World = data-parallel replicas x pipeline stages, stages being adjacent ranks."""

    def __init__(self, stages):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.stages = stages
        self.replicas = self.world // stages
        self.replica, self.stage = divmod(self.rank, stages)
        self.pipe_group = self.data_group = None
        for r in range(self.replicas):
            ranks = list(range(r * stages, (r + 1) * stages))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.pipe_group = group
        for s in range(stages):
            ranks = list(range(s, self.world, stages))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.data_group = group
        pipe_rank = dist.get_rank(self.pipe_group)
        self.prev_rank = pipe_rank - 1 if pipe_rank > 0 else None
        self.next_rank = pipe_rank + 1 if pipe_rank < stages - 1 else None

    @property
    def first(self):
        return self.stage == 0

    @property
    def last(self):
        return self.stage == self.stages - 1


class Channel:
    def __init__(self, layout, shape):
        self.layout, self.shape = layout, shape

    def _recv(self, peer):
        buf = torch.empty(self.shape)
        dist.recv(buf, src=peer)
        return buf

    def recv_activation(self):
        return None if self.layout.first else self._recv(self.layout.prev_rank).requires_grad_()

    def send_activation(self, y):
        if not self.layout.last:
            dist.send(y.detach().contiguous(), dst=self.layout.next_rank)

    def recv_gradient(self):
        return None if self.layout.last else self._recv(self.layout.next_rank)

    def send_gradient(self, g):
        if not self.layout.first:
            dist.send(g.contiguous(), dst=self.layout.prev_rank)
