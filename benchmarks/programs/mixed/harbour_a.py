import argparse
import time

import timm
import torch
import torch.distributed as dist
import torch.nn as nn
from timm.utils import AverageMeter, accuracy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_sets(n_train, n_val, size):
    g = torch.Generator().manual_seed(3)
    y = torch.randint(0, 10, (n_train + n_val,), generator=g)
    x = torch.randn(len(y), 3, size, size, generator=g) * 0.5
    x[:, 0] += y.view(-1, 1, 1) * 0.2
    return TensorDataset(x[:n_train], y[:n_train]), TensorDataset(x[n_train:], y[n_train:])


@torch.inference_mode()
def validate(model, loader, criterion):
    model.eval()
    everything, targets = [], []
    for images, labels in loader:
        logits = model(images)
        everything.append(logits)
        targets.append(labels)
    logits, labels = torch.cat(everything), torch.cat(targets)
    top1, top5 = accuracy(logits, labels, topk=(1, 5))
    totals = torch.tensor([float(criterion(logits, labels)), float(top1), float(top5)])
    dist.all_reduce(totals)
    return (totals / dist.get_world_size()).tolist()


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    meter = AverageMeter()
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(labels))
    return meter.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, val_set = make_sets(320, 640, args.size)
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=16, sampler=val_sampler)

    net = timm.create_model(args.model, pretrained=False, num_classes=10)
    model = DDP(net)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        start = time.time()
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer)
        val_loss, top1, top5 = validate(model.module, val_loader, criterion)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train {train_loss:.3f} val {val_loss:.3f} top1 {top1:.1f} top5 {top5:.1f} {time.time() - start:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
