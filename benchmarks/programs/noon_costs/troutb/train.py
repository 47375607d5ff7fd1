import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from probe import probe_layers


class Encoder(nn.Module):
    def __init__(self, width=32, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block1 = self._block(width, width * 2)
        self.block2 = self._block(width * 2, width * 4)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * 4, 128), nn.ReLU(), nn.Linear(128, classes))

    @staticmethod
    def _block(cin, cout):
        return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(8, cout), nn.ReLU(), nn.AvgPool2d(2))

    def forward(self, x):
        x = self.block2(self.block1(F.relu(self.stem(x))))
        return self.head(x.mean((2, 3)))


def make_data(n, seed=11):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    base = torch.randn(10, 3, 24, 24, generator=g)
    x = base[y] + 1.5 * torch.randn(n, 3, 24, 24, generator=g)
    return TensorDataset(x, y)


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--probe-every", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.01)
    return ap.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)

    net = Encoder()
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    dataset = make_data(2048)
    sampler = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    reference = make_data(24, seed=12).tensors[0]
    layers = ["stem", "block1", "block2", "head"]

    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            step += 1
            if step % args.probe_every == 0:
                ranks = probe_layers(net, reference, layers)
                if rank == 0:
                    text = " ".join(f"{k}={v:.1f}" for k, v in ranks.items())
                    print(f"step {step} loss {loss.item():.3f} {text} t={time.time() - t0:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
