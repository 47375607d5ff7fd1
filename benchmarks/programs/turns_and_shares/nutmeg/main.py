"""Graph node regression on three processes, gradients carried round a ring."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ring import Ring


def make_graphs(count, nodes, seed):
    g = torch.Generator().manual_seed(seed)
    pos = torch.rand(count, nodes, 2, generator=g)
    near = (torch.cdist(pos, pos) < 0.45).float()
    adj = near / near.sum(-1, keepdim=True)
    feats = torch.randn(count, nodes, 5, generator=g)
    target = (adj @ feats[..., :1]).squeeze(-1) + 0.5 * torch.tanh(feats[..., 1])
    return adj, feats, target


class MeanConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own = nn.Linear(fan_in, fan_out)
        self.other = nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, adj, h):
        return self.own(h) + self.other(adj @ h)


class GraphNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = MeanConv(5, width)
        self.second = MeanConv(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, adj, h):
        h = torch.relu(self.first(adj, h))
        h = torch.relu(self.second(adj, h))
        return self.out(h).squeeze(-1)


def deal(total, world, rank, batch, seed, epoch):
    """Same permutation everywhere, cut to a whole number of global batches."""
    g = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(total, generator=g)
    whole = total // (batch * world) * batch * world
    return order[:whole].view(-1, world, batch)[:, rank]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--graphs", type=int, default=1000)
    ap.add_argument("--nodes", type=int, default=12)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=6)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "ringgraph"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    ring = Ring()
    torch.manual_seed(args.seed)
    net = GraphNet(args.width)
    params = list(net.parameters())
    sizes = [p.numel() for p in params]
    for p in params:
        dist.broadcast(p.data, 0)
    opt = torch.optim.AdamW(params, lr=args.lr, weight_decay=1e-4)
    adj, feats, target = make_graphs(args.graphs, args.nodes, 1)
    held = make_graphs(120, args.nodes, 2)

    for epoch in range(args.epochs):
        total, turns = 0.0, 0
        for pick in deal(args.graphs, ring.world, ring.rank, args.batch, args.seed, epoch):
            loss = F.mse_loss(net(adj[pick], feats[pick]), target[pick])
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in params])
            ring.average_(flat)
            for p, piece in zip(params, flat.split(sizes)):
                p.grad.copy_(piece.view_as(p))
            opt.step()
            total += loss.item()
            turns += 1
        shown = ring.mean(total / turns)
        if ring.rank == 0:
            with torch.no_grad():
                score = F.mse_loss(net(held[0], held[1]), held[2]).item()
            print(f"epoch {epoch} train {shown:.4f} held {score:.4f}", flush=True)
    if ring.rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(args.out, "graphnet.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
