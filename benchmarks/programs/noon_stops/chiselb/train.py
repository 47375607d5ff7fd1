import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from meters import Accuracy, ConfusionMatrix
from report import Reporter

CLASSES = 6


def make_graphs(n, nodes, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=g)
    proto = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(3))
    feats = 0.35 * proto[label][:, None, :] + torch.randn(n, nodes, 16, generator=g)
    density = 0.1 + 0.1 * label.float() / CLASSES
    adj = (torch.rand(n, nodes, nodes, generator=g) < density[:, None, None]).float()
    adj = ((adj + adj.transpose(1, 2)) > 0).float()
    return TensorDataset(feats, adj, label)


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own, self.nbr = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, adj):
        deg = adj.sum(-1, keepdim=True).clamp(min=1)
        return torch.relu(self.own(x) + self.nbr(adj @ x / deg))


class GraphNet(nn.Module):
    def __init__(self, dim=128, depth=3):
        super().__init__()
        dims = [16] + [dim] * depth
        self.convs = nn.ModuleList([GraphConv(a, b) for a, b in zip(dims, dims[1:])])
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, x, adj):
        for conv in self.convs:
            x = conv(x, adj)
        return self.out(x.mean(1))


@torch.no_grad()
def evaluate(net, loader, accuracy, confusion):
    net.eval()
    accuracy.reset()
    confusion.reset()
    for x, adj, y in loader:
        logits = net(x, adj)
        accuracy.update(logits, y)
        confusion.update(logits, y)
    return accuracy.compute()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--report-from", type=int, default=2)
    args = p.parse_args()

    dist.init_process_group("gloo")
    train_set, val_set = make_graphs(2304, 24, 1), make_graphs(768, 24, 2)
    sampler = DistributedSampler(train_set, seed=4)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size, sampler=DistributedSampler(val_set, shuffle=False))
    torch.manual_seed(0)
    model = DDP(GraphNet())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    accuracy, confusion, reporter = Accuracy(), ConfusionMatrix(CLASSES), Reporter()

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for x, adj, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x, adj), y)
            loss.backward()
            opt.step()
        acc = evaluate(model.module, val_loader, accuracy, confusion)
        reporter.scalars(epoch, loss=loss.item(), val_acc=acc)
        if epoch >= args.report_from:
            reporter.per_class(epoch, acc, confusion)
    reporter.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
