import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.ops import Conv2dNormActivation

from shapes import loaders


def build():
    return torch.nn.Sequential(
        Conv2dNormActivation(1, 12, 3, norm_layer=lambda c: torch.nn.GroupNorm(3, c)),
        Conv2dNormActivation(12, 24, 3, stride=2, norm_layer=lambda c: torch.nn.GroupNorm(3, c)),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(24, 3),
    )


class Shadow:
    """Averaged weights and their validation score, kept by the main process."""

    def __init__(self, net, decay):
        self.avg = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self.best = 0.0

    @torch.no_grad()
    def score(self, loader):
        self.avg.eval()
        hit = n = 0
        for x, y in loader:
            hit += (self.avg(x).argmax(-1) == y).sum().item()
            n += len(y)
        if hit / n > self.best:
            self.best = hit / n
            torch.save(self.avg.module.state_dict(), "best_average.pt")
        return hit / n


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(build())
    shadow = Shadow(model.module, args.decay) if rank == 0 else None
    optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train, sampler, val = loaders(args.batch)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            if shadow is not None:
                shadow.avg.update_parameters(model.module)
        if shadow is not None:
            began = time.time()
            acc = shadow.score(val)
            print(f"epoch {epoch} loss {loss.item():.3f} averaged acc {acc:.3f} ({time.time() - began:.1f}s)", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--decay", type=float, default=0.95)
    main(ap.parse_args())
