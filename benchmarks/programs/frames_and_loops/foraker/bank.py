import torch
import torch.distributed as dist
import torch.nn.functional as F


def node_members(rank: int, world: int, per_node: int) -> list[int]:
    first = (rank // per_node) * per_node
    return list(range(first, min(first + per_node, world)))


class MemoryBank:
    """FIFO of normalised embeddings with their class ids.

    Once the bank is filled it is extended with the embeddings of the other
    processes on the same node, which are cheap to reach.
    """

    def __init__(self, capacity: int, dim: int, members: list[int], per_node: int):
        self.capacity = capacity
        self.members = members
        self.feats = torch.zeros(capacity, dim)
        self.labels = torch.full((capacity,), -1, dtype=torch.long)
        self.ptr = 0
        self.seen = 0
        self._group = None
        for first in range(0, dist.get_world_size(), per_node):
            ranks = node_members(first, dist.get_world_size(), per_node)
            group = dist.new_group(ranks)
            if ranks == members:
                self._group = group

    @property
    def filled(self) -> bool:
        return self.seen >= self.capacity

    @property
    def group(self):
        return self._group

    @torch.no_grad()
    def push(self, feats: torch.Tensor, labels: torch.Tensor) -> None:
        n = feats.size(0)
        idx = (torch.arange(n) + self.ptr) % self.capacity
        self.feats[idx] = feats.detach()
        self.labels[idx] = labels
        self.ptr = int((self.ptr + n) % self.capacity)
        self.seen += n

    @torch.no_grad()
    def view(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.filled:
            return self.feats[: self.ptr], self.labels[: self.ptr]
        if len(self.members) == 1:
            return self.feats, self.labels
        feats = [torch.empty_like(self.feats) for _ in self.members]
        labels = [torch.empty_like(self.labels) for _ in self.members]
        dist.all_gather(feats, self.feats, group=self.group)
        dist.all_gather(labels, self.labels, group=self.group)
        return torch.cat(feats), torch.cat(labels)


def bank_loss(emb, labels, bank_feats, bank_labels, margin: float, temperature: float):
    if bank_feats.numel() == 0:
        return emb.sum() * 0.0
    sim = emb @ bank_feats.t()
    same = labels[:, None].eq(bank_labels[None, :])
    pos = F.relu(1.0 - margin - sim).masked_fill(~same, 0.0)
    pos = pos.sum(1) / same.sum(1).clamp_min(1)
    neg = torch.logsumexp((sim / temperature).masked_fill(same, -1e4), dim=1) * temperature
    return pos.mean() + F.softplus(neg).mean()
