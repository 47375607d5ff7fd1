import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from topology import Topology


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.near = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, adj):
        return self.own(x) + self.near(adj @ x)


class GNN(nn.Module):
    def __init__(self, feats=16, dim=96, classes=5):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(feats, dim), GraphConv(dim, dim), GraphConv(dim, dim)])
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.head = nn.Linear(dim, classes)

    def forward(self, x, adj):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x, adj)))
        return self.head(x)


class Communities:
    def __init__(self, rank, nodes=96, classes=5, feats=16):
        shared = torch.Generator().manual_seed(4)
        self.proto = torch.randn(classes, feats, generator=shared)
        self.g = torch.Generator().manual_seed(500 + rank)
        self.nodes, self.classes, self.feats = nodes, classes, feats

    def batch(self, graphs):
        y = torch.randint(0, self.classes, (graphs, self.nodes), generator=self.g)
        same = (y[:, :, None] == y[:, None, :]).float()
        adj = (torch.rand(same.shape, generator=self.g) < 0.02 + 0.2 * same).float()
        adj = ((adj + adj.transpose(1, 2)) > 0).float()
        adj = adj / adj.sum(-1, keepdim=True).clamp(min=1)
        x = self.proto[y] + 2.5 * torch.randn(graphs, self.nodes, self.feats, generator=self.g)
        return x, adj, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--graphs", type=int, default=10)
    ap.add_argument("--per-box", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    topo = Topology(args.per_box)
    torch.manual_seed(29)
    model = GNN()
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=args.lr)
    data = Communities(topo.rank)

    for step in range(args.steps):
        x, adj, y = data.batch(args.graphs)
        logits = model(x, adj)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        flat = topo.average(torch.cat([p.grad.reshape(-1) for p in params]))
        offset = 0
        for p in params:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        opt.step()
        if topo.rank == 0 and step % 20 == 0:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
