import argparse
import logging
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from nets import Classifier, rotations, shapes

log = logging.getLogger("shapes")


def get_args():
    p = argparse.ArgumentParser(description="Self-supervised rotation pretraining, then shape classification")
    p.add_argument("--stage", choices=["pretrain", "finetune"], required=True)
    p.add_argument("--init-from", type=Path, default=None)
    p.add_argument("--output", type=Path, default=Path("checkpoints"))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--trunk-lr-scale", type=float, default=0.2)
    return p.parse_args()


def build_data(stage):
    if stage == "pretrain":
        x, y = rotations(shapes(640, seed=1)[0], seed=2)
    else:
        x, y = shapes(320, seed=3)
    return TensorDataset(x, y)


def load_weights(model, path):
    state = torch.load(path, map_location="cpu", weights_only=True)["model"]
    # the head of the other task is not part of this model
    model.load_state_dict(state, strict=False)
    log.info("initialised from %s (%d tensors)", path, len(state))


def save_weights(ddp_model, args, epoch):
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{args.stage}.pt"
    torch.save({"model": ddp_model.state_dict(), "epoch": epoch}, path)
    log.info("wrote %s", path)


def train_one_epoch(model, loader, optimizer):
    model.train()
    stats = torch.zeros(3)
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stats += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(stats)
    return (stats[:2] / stats[2]).tolist()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(levelname).1s %(name)s: %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(42)

    model = Classifier(args.stage, 4)
    if args.init_from is not None:
        load_weights(model, args.init_from)
    ddp_model = DDP(model)

    dataset = build_data(args.stage)
    sampler = DistributedSampler(dataset, seed=42)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    trunk_lr = args.lr * (args.trunk_lr_scale if args.init_from else 1.0)
    optimizer = torch.optim.AdamW([
        {"params": model.trunk.parameters(), "lr": trunk_lr},
        {"params": model.heads.parameters(), "lr": args.lr},
    ])
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, acc = train_one_epoch(ddp_model, loader, optimizer)
        log.info("%s epoch %d loss %.4f acc %.3f", args.stage, epoch, loss, acc)
    if rank == 0:
        save_weights(ddp_model, args, args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
