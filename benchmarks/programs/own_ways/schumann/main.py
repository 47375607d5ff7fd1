"""Transfer learning with Lightning Fabric: head first, then the whole network."""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

from parts import Classifier, GradualFinetuning, shapes


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--unfreeze-at", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--head-lr", type=float, default=3e-3)
    p.add_argument("--backbone-lr", type=float, default=2e-3)
    p.add_argument("--devices", type=int, default=None)
    p.add_argument("--seed", type=int, default=21)
    return p.parse_args()


def pretrain(seed, steps=20):
    """Stands in for downloaded weights: a short run on a related task."""
    torch.manual_seed(seed)
    model = Classifier(4)
    x, y = shapes(256, 99)
    target = (y >= 2).long()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        pick = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[pick])[:, :2], target[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model.backbone.state_dict()


@torch.no_grad()
def validate(fabric, model, loader):
    model.eval()
    hits = torch.zeros(2)
    for x, y in loader:
        hits += torch.tensor([(model(x).argmax(-1) == y).sum().item(), float(len(y))])
    hits = fabric.all_reduce(hits, reduce_op="sum")
    model.train()
    return (hits[0] / hits[1]).item()


def run(fabric, a):
    weights = pretrain(a.seed)
    fabric.seed_everything(a.seed, verbose=False)
    network = Classifier(4)
    network.backbone.load_state_dict(weights)
    optimizer = torch.optim.AdamW(network.head.parameters(), lr=a.head_lr, weight_decay=0.01)
    finetuning = GradualFinetuning(network, optimizer, a.unfreeze_at, a.backbone_lr)
    finetuning.freeze()
    model, wrapped_opt = fabric.setup(network, optimizer)

    torch.manual_seed(a.seed + fabric.global_rank)
    train = DataLoader(TensorDataset(*shapes(384, 1)), a.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(*shapes(192, 2)), 32)
    train, valid = fabric.setup_dataloaders(train, valid)

    for epoch in range(a.epochs):
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(epoch)
        if finetuning.on_epoch_start(epoch):
            fabric.print(f"epoch {epoch}: backbone is trainable now")
        total = 0.0
        for x, y in train:
            x = x + 0.1 * torch.randn_like(x)
            loss = F.cross_entropy(model(x), y)
            wrapped_opt.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, wrapped_opt, max_norm=1.0, error_if_nonfinite=False)
            wrapped_opt.step()
            total += loss.item()
        mean = fabric.all_reduce(torch.tensor(total / len(train)), reduce_op="mean")
        acc = validate(fabric, model, valid)
        open_params = sum(p.numel() for p in network.parameters() if p.requires_grad)
        fabric.print(f"epoch {epoch}: loss {mean:.4f} accuracy {acc:.4f} "
                     f"trainable {open_params}")
    fabric.save(f"{tempfile.gettempdir()}/shapes_finetuned.ckpt",
                {"model": model, "epoch": a.epochs})
    fabric.print("saved")


def main():
    a = arguments()
    world = a.devices or int(os.environ.get("WORLD_SIZE", 1))
    fabric = Fabric(accelerator="cpu", devices=world,
                    strategy=DDPStrategy(process_group_backend="gloo"))
    fabric.launch()
    run(fabric, a)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
