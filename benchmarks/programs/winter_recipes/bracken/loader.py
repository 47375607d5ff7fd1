import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset


class NeighbourSampler(IterableDataset):
    """Endless stream of (roots, one-hop, two-hop) blocks; roots are drawn with replacement."""

    def __init__(self, graph, batch_size, fanouts):
        self.graph = graph
        self.batch_size = batch_size
        self.fanouts = fanouts

    def __iter__(self):
        g = self.graph
        while True:
            roots = np.random.choice(g.train_nodes, self.batch_size)
            hop1 = g.random_neighbours(roots, self.fanouts[0])
            hop2 = g.random_neighbours(hop1.ravel(), self.fanouts[1]).reshape(*hop1.shape, -1)
            yield (
                torch.from_numpy(g.x[roots]),
                torch.from_numpy(g.x[hop1]),
                torch.from_numpy(g.x[hop2]),
                torch.from_numpy(g.y[roots]),
            )


class SeedWorker:
    """numpy is used inside the workers, so give every one of them a stream of its own."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        np.random.seed(self.seed + worker_id)


def build_loader(graph, batch_size, fanouts, num_workers, seed):
    return DataLoader(
        NeighbourSampler(graph, batch_size, fanouts),
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=SeedWorker(seed),
        prefetch_factor=4,
    )
