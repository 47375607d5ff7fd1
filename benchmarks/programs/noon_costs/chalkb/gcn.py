import torch
import torch.nn.functional as F
from torch import nn


def gcn_norm(edge_index, num_nodes):
    loops = torch.arange(num_nodes)
    index = torch.cat([edge_index, edge_index.flip(0), torch.stack([loops, loops])], dim=1)
    adj = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (num_nodes, num_nodes),
                                  check_invariants=False).coalesce()
    deg = torch.sparse.sum(adj, dim=1).to_dense()
    inv = deg.pow(-0.5)
    row, col = adj.indices()
    value = inv[row] * adj.values() * inv[col]
    return torch.sparse_coo_tensor(adj.indices(), value, adj.shape,
                                   is_coalesced=True, check_invariants=False).to_sparse_csr()


class GCNConv(nn.Module):
    def __init__(self, cin, cout, cached=False):
        super().__init__()
        self.lin = nn.Linear(cin, cout)
        self.cached = cached
        self._adj = None

    def forward(self, x, edge_index):
        adj = self._adj
        if adj is None:
            adj = gcn_norm(edge_index, x.shape[0])
            if self.cached:
                self._adj = adj
        return torch.sparse.mm(adj, self.lin(x))


class GCN(nn.Module):
    def __init__(self, cin, hidden, classes, layers=3, cached=False):
        super().__init__()
        sizes = [cin] + [hidden] * (layers - 1) + [classes]
        self.convs = nn.ModuleList(GCNConv(a, b, cached) for a, b in zip(sizes[:-1], sizes[1:]))

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), 0.3, self.training)
        return self.convs[-1](x, edge_index)
