import time

import numpy as np
import torch


class CSRGraph:
    """Directed graph in CSR form with node features and labels."""

    def __init__(self, indptr, indices, feat, label):
        self.indptr, self.indices, self.feat, self.label = indptr, indices, feat, label
        self.degree = indptr[1:] - indptr[:-1]

    @property
    def num_nodes(self):
        return len(self.indptr) - 1

    def reorder_by_degree(self):
        """New ids in the order of falling degree; hot rows of the feature matrix become neighbours in memory."""
        order = torch.argsort(self.degree, descending=True)
        rank_of = torch.empty_like(order)
        rank_of[order] = torch.arange(self.num_nodes)
        deg = self.degree[order]
        indptr = torch.cat([torch.zeros(1, dtype=torch.long), deg.cumsum(0)])
        rows = torch.cat([self.indices[self.indptr[v]:self.indptr[v + 1]] for v in order.tolist()])
        return CSRGraph(indptr, rank_of[rows], self.feat[order], self.label[order])

    def in_edges(self, nodes):
        """Sources of all in-edges of the nodes and, for each edge, the position of its target in `nodes`."""
        deg = self.degree[nodes]
        dst = torch.repeat_interleave(torch.arange(len(nodes)), deg)
        first = torch.repeat_interleave(self.indptr[nodes], deg)
        offset = torch.arange(int(deg.sum())) - torch.repeat_interleave(deg.cumsum(0) - deg, deg)
        return self.indices[first + offset], dst


class FeatureServer:
    """Features are not kept by the trainers but pulled row by row from the key-value servers."""

    def __init__(self, feat, rows_per_second=70_000):
        self.feat, self.rate = feat, rows_per_second

    def pull(self, ids):
        rows = self.feat[ids]
        time.sleep(len(ids) / self.rate)
        return rows


def citation_like(n=12000, classes=8, dim=32, seed=2):
    rng = np.random.default_rng(seed)
    deg = np.clip((rng.pareto(1.1, n) * 6 + 2).astype(np.int64), 2, 900)
    label = rng.integers(classes, size=n)
    by_class = [np.flatnonzero(label == c) for c in range(classes)]
    rows = []
    for v in range(n):
        k = deg[v]
        same = rng.random(k) < 0.6
        nb = rng.integers(n, size=k)
        pool = by_class[label[v]]
        nb[same] = pool[rng.integers(len(pool), size=int(same.sum()))]
        rows.append(nb)
    proto = rng.normal(size=(classes, dim))
    feat = proto[label] + rng.normal(0, 4.0, size=(n, dim))
    indptr = np.concatenate([[0], np.cumsum(deg)])
    t = torch.from_numpy
    return CSRGraph(t(indptr), t(np.concatenate(rows)), t(feat.astype(np.float32)), t(label))
