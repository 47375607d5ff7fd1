"""Small residual CNN, trained with accelerate and probed during training."""
import argparse
import logging
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from probes import knn_accuracy

log = logging.getLogger("probe-cnn")


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.c1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.b1 = nn.GroupNorm(8, ch)
        self.c2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.b2 = nn.GroupNorm(8, ch)

    def forward(self, x):
        h = F.relu(self.b1(self.c1(x)))
        return F.relu(x + self.b2(self.c2(h)))


class Net(nn.Module):
    def __init__(self, ch, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, stride=2, padding=1)
        self.layer1 = Residual(ch)
        self.down = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.layer2 = Residual(2 * ch)
        self.fc = nn.Linear(2 * ch, classes)

    def forward(self, x):
        x = self.layer1(F.relu(self.stem(x)))
        x = self.layer2(F.relu(self.down(x)))
        return self.fc(x.mean((2, 3)))


def make_data(n, classes, size, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(n) % classes
    x = F.interpolate(proto[y], size=(size, size)) + 1.5 * torch.randn(n, 3, size, size, generator=g)
    return TensorDataset(x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=1920)
    ap.add_argument("--probe-samples", type=int, default=128)
    ap.add_argument("--classes", type=int, default=10)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--probe-every", type=int, default=20)
    ap.add_argument("--channels", type=int, default=16)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    acc = Accelerator(cpu=True)
    set_seed(5)
    model = Net(args.channels, args.classes)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    train = DataLoader(make_data(args.samples, args.classes, args.size, 0), args.batch_size, shuffle=True)
    probe = DataLoader(make_data(args.probe_samples, args.classes, args.size, 9), args.batch_size)
    model, opt, train, probe = acc.prepare(model, opt, train, probe)

    step, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for images, target in train:
            loss = F.cross_entropy(model(images), target)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
            step += 1
            if step % args.probe_every == 0:
                net = acc.unwrap_model(model)
                score = knn_accuracy(net, net.layer2, probe, acc)
                if acc.is_main_process:
                    log.info("step %d loss %.4f knn %.3f (%.1fs)", step, loss.item(), score,
                             time.perf_counter() - t0)
    acc.end_training()


if __name__ == "__main__":
    main()
