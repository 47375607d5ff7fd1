"""Gradual unfreezing: the head first, then the upper block, then all; DDP is rewrapped for each stage."""
import argparse
import os
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def domain(n, seed, shift, classes):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(4, 40, generator=torch.Generator().manual_seed(90))
    z = torch.randn(n, 4, generator=g)
    x = (z @ basis).sin() + shift + 0.2 * torch.randn(n, 40, generator=g)
    if classes == 2:
        y = (z[:, 0] * z[:, 1] > 0).long()
    else:
        y = (z[:, 0] > 0).long() * 2 + (z[:, 1] > 0).long()
    return TensorDataset(x, y)


def block(fan_in, fan_out):
    return nn.Sequential(nn.Linear(fan_in, fan_out), nn.LayerNorm(fan_out), nn.GELU())


def backbone(width=64):
    return nn.Sequential(OrderedDict(low=block(40, width), mid=block(width, width), top=block(width, width)))


class Classifier(nn.Module):
    def __init__(self, body, classes, width=64):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


STAGES = [("head", ("head.",), 1.0), ("top", ("head.", "body.top."), 0.5), ("all", ("head.", "body."), 0.25)]


def set_trainable(model, prefixes):
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(prefixes))
    return [p for p in model.parameters() if p.requires_grad]


def train_epochs(model, params, data, epochs, lr, args, first_epoch, rank, label, held=None):
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.2, total_iters=epochs * len(loader))
    for e in range(first_epoch, first_epoch + epochs):
        sampler.set_epoch(e)
        model.train()
        tally = torch.zeros(3)
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            tally += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(), float(len(y))])
        dist.all_reduce(tally)
        acc = accuracy(model.module, held) if held is not None else float("nan")
        if rank == 0:
            print(f"{label:>8} epoch {e} loss {(tally[0] / tally[2]).item():.4f} train {(tally[1] / tally[2]).item():.3f} "
                  f"held {acc:.3f} trainable {sum(p.numel() for p in params)}", flush=True)
    return first_epoch + epochs


@torch.no_grad()
def accuracy(net, data):
    rank, world = dist.get_rank(), dist.get_world_size()
    net.eval()
    x, y = (t[rank::world] for t in data.tensors)
    s = torch.tensor([(net(x).argmax(1) == y).sum().item(), float(len(y))])
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def digest(params):
    return sum(p.detach().double().abs().sum() for p in params).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pre-epochs", type=int, default=3)
    ap.add_argument("--stage-epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    body = backbone()
    source = Classifier(body, 4)
    epoch = train_epochs(DDP(source), list(source.parameters()), domain(1600, 1, 0.0, 4), args.pre_epochs, args.lr, args,
                         0, rank, "source", domain(400, 11, 0.0, 4))

    net = Classifier(body, 2)
    target, held = domain(800, 2, 0.4, 2), domain(400, 12, 0.4, 2)
    for name, prefixes, factor in STAGES:
        params = set_trainable(net, prefixes)
        frozen = [p for p in net.parameters() if not p.requires_grad]
        before = digest(frozen) if frozen else 0.0
        model = DDP(net)
        epoch = train_epochs(model, params, target, args.stage_epochs, args.lr * factor, args, epoch, rank, name, held)
        if frozen and digest(frozen) != before:
            raise RuntimeError("frozen weights moved")
        del model
        if rank == 0:
            os.makedirs("runs/mint", exist_ok=True)
            torch.save({"net": net.state_dict(), "stage": name, "epoch": epoch}, f"runs/mint/{name}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
