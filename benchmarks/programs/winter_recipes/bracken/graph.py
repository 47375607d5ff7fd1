import numpy as np


class Graph:
    """Undirected stochastic block model in CSR form with node features and labels."""

    def __init__(self, nodes=6000, classes=8, degree=12, feats=64, seed=1):
        rng = np.random.default_rng(seed)
        self.num_nodes, self.classes = nodes, classes
        self.y = rng.integers(classes, size=nodes)
        by_class = [np.flatnonzero(self.y == c) for c in range(classes)]
        src, dst = [], []
        for v in range(nodes):
            same = rng.random(degree // 2) < 0.7
            pick = np.where(same, rng.choice(by_class[self.y[v]], degree // 2), rng.integers(nodes, size=degree // 2))
            src.append(np.full(degree // 2, v))
            dst.append(pick)
        src, dst = np.concatenate(src), np.concatenate(dst)
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        order = np.argsort(src, kind="stable")
        self.indices = dst[order]
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=nodes))])
        centers = rng.normal(size=(classes, feats))
        self.x = (0.25 * centers[self.y] + rng.normal(size=(nodes, feats))).astype(np.float32)
        self.train_nodes = rng.permutation(nodes)[: nodes // 2]

    def random_neighbours(self, nodes, fanout):
        start, stop = self.indptr[nodes], self.indptr[nodes + 1]
        offs = np.random.randint(0, 1 << 30, size=(len(nodes), fanout)) % (stop - start)[:, None]
        return self.indices[start[:, None] + offs]
