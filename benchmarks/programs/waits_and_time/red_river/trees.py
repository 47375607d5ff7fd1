from dataclasses import dataclass

import torch


@dataclass
class Tree:
    kinds: torch.Tensor
    parents: torch.Tensor
    labels: torch.Tensor

    @property
    def size(self):
        return len(self.kinds)


class TreeStream:
    """Random trees; a node's label depends on its kind and its parent's kind."""

    def __init__(self, kinds, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.kinds = kinds
        self.table = torch.randint(0, classes, (kinds, 3), generator=g)
        self.seed = seed

    def batch(self, step):
        g = torch.Generator().manual_seed(self.seed * 10000 + step)
        count = int(torch.randint(2, 8, (1,), generator=g))
        trees = []
        for _ in range(count):
            n = int(torch.randint(10, 60, (1,), generator=g))
            kinds = torch.randint(0, self.kinds, (n,), generator=g)
            parents = (torch.rand(n, generator=g) * torch.arange(n)).long()
            labels = self.table[kinds, kinds[parents] % 3]
            trees.append(Tree(kinds, parents, labels))
        return trees
