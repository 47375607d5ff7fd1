import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

cfg = SimpleNamespace(epochs=3, unfreeze_at=1, head_lr=1e-2, body_lr=1e-3, bs=8, classes=5)


def data():
    g = torch.Generator().manual_seed(5)
    y = torch.randint(0, cfg.classes, (160,), generator=g)
    x = torch.randn(160, 3, 32, 32, generator=g)
    x[:, 0] += y.view(-1, 1, 1).float() * 0.4
    return TensorDataset(x, y)


def backbone_params(net):
    return [p for n, p in net.named_parameters() if not n.startswith("classifier")]


def set_backbone(net, flag):
    for p in backbone_params(net):
        p.requires_grad_(flag)


def build():
    net = torchvision.models.squeezenet1_1()
    net.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, cfg.classes))
    net.num_classes = cfg.classes
    set_backbone(net, False)
    return net


def run_epoch(model, loader, opt, loss_fn):
    model.train()
    total, seen = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item() * len(y)
        seen += len(y)
    return total / seen


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = build()
    model = DistributedDataParallel(net)
    torch.manual_seed(100 + rank)
    opt = torch.optim.Adam(
        [
            {"params": net.classifier.parameters(), "lr": cfg.head_lr},
            {"params": backbone_params(net), "lr": cfg.body_lr},
        ]
    )
    ds = data()
    sampler = DistributedSampler(ds, seed=1)
    loader = DataLoader(ds, cfg.bs, sampler=sampler, drop_last=True)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        if epoch == cfg.unfreeze_at:
            set_backbone(net, True)
            if rank == 0:
                print("backbone is now trainable", flush=True)
        loss = run_epoch(model, loader, opt, nn.CrossEntropyLoss())
        if rank == 0:
            print(f"[{epoch}] loss={loss:.4f}", flush=True)
    if rank == 0:
        os.makedirs("ckpt", exist_ok=True)
        torch.save(model.module.state_dict(), "ckpt/final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
