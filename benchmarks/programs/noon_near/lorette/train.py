import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Backbone(nn.Module):
    def __init__(self, patch=16 * 3, dim=96, depth=3, tokens=36):
        super().__init__()
        self.proj = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x):
        b = x.shape[0]
        x = x.view(b, 3, 6, 4, 6, 4).permute(0, 2, 4, 1, 3, 5).reshape(b, 36, 48)
        return self.encoder(self.proj(x) + self.pos).mean(1)


class Finetune(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, classes))

    def forward(self, x):
        return self.head(self.backbone(x))


def make_split(n, seed, classes=10):
    shared = torch.Generator().manual_seed(0)
    proto = torch.randn(classes, 3, 24, 24, generator=shared)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(proto[y] * 0.35 + torch.randn(n, 3, 24, 24, generator=g), y)


class GradualUnfreeze:
    """Head first; the encoder joins with its own rate once the head has settled."""

    def __init__(self, optimizer, scheduler, group_index, lr, at_epoch):
        self.optimizer, self.scheduler = optimizer, scheduler
        self.index, self.lr, self.at_epoch = group_index, lr, at_epoch

    def on_epoch_start(self, epoch):
        if epoch == self.at_epoch:
            self.scheduler.base_lrs[self.index] = self.lr
            self.optimizer.param_groups[self.index]["lr"] = self.lr * self.scheduler.lr_lambdas[self.index](
                self.scheduler.last_epoch)


def warmup_cosine(warmup, total):
    def scale(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    return scale


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--head-lr", type=float, default=3e-3)
    ap.add_argument("--backbone-lr", type=float, default=1e-3)
    ap.add_argument("--unfreeze-epoch", type=int, default=1)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(13)
    model = DDP(Finetune())
    optimizer = torch.optim.AdamW([
        {"params": model.module.head.parameters(), "lr": args.head_lr},
        {"params": model.module.backbone.parameters(), "lr": 0.0}], weight_decay=0.01)
    data = make_split(1920, seed=1)
    sampler = DistributedSampler(data, world, rank, seed=3)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(10, args.epochs * len(loader)))
    unfreeze = GradualUnfreeze(optimizer, scheduler, 1, args.backbone_lr, args.unfreeze_epoch)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        unfreeze.on_epoch_start(epoch)
        hits = torch.zeros(2)
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            hits += torch.tensor([(logits.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} acc {hits[0] / hits[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
