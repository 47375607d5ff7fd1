import argparse
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


def transactions(n=1200, d=12, rate=0.06, seed=99):
    rs = np.random.RandomState(seed)
    label = (rs.rand(n) < rate).astype(np.float32)
    feats = rs.randn(n, d).astype(np.float32)
    feats[:, :4] += 1.2 * label[:, None]
    return torch.from_numpy(feats), torch.from_numpy(label)


class BalancedDraws(IterableDataset):
    """Draws with replacement so that fraud and non-fraud rows come equally often."""

    def __init__(self, feats, label, draws, stream_id, seed):
        self.feats, self.label = feats, label
        self.draws, self.stream_id, self.seed = draws, stream_id, seed
        w = torch.where(label > 0, 0.5 / label.sum(), 0.5 / (1 - label).sum())
        self.p = (w / w.sum()).double().numpy()
        self.p /= self.p.sum()
        self.epoch = 0

    def __len__(self):
        return self.draws

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch, self.stream_id])
        picked = rng.choice(len(self.p), size=self.draws, replace=True, p=self.p)
        for i in picked:
            yield self.feats[i], self.label[i]


class Scorer(torch.nn.Module):
    def __init__(self, d, width=64):
        super().__init__()
        self.inp = torch.nn.Linear(d, width)
        self.mid = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 1)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = h + torch.tanh(self.mid(h))
        return self.out(h).squeeze(1)


@torch.no_grad()
def recall_precision(net, feats, label):
    hit = net(feats) > 0
    tp = (hit & (label > 0)).sum().item()
    return tp / max(1, (label > 0).sum().item()), tp / max(1, hit.sum().item())


def cli(argv):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--draws", type=int, default=480, help="rows per rank and epoch")
    ap.add_argument("--bs", type=int, default=40)
    ap.add_argument("--seed", type=int, default=2)
    return ap.parse_args(argv)


def main(argv):
    o = cli(argv)
    dist.init_process_group("gloo")
    me = dist.get_rank()
    torch.manual_seed(o.seed)
    feats, label = transactions()
    held, held_y = transactions(seed=100)
    source = BalancedDraws(feats, label, o.draws, stream_id=me, seed=o.seed)
    loader = DataLoader(source, batch_size=o.bs)
    net = DistributedDataParallel(Scorer(feats.shape[1]))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for source.epoch in range(o.epochs):
        for x, y in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if me == 0:
            r, p = recall_precision(net.module, held, held_y)
            print("epoch %d  loss %.3f  recall %.2f  precision %.2f" % (source.epoch, loss.item(), r, p))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
