"""timm recipe at pocket size."""
import argparse
import logging
import os

import timm
import torch
import torch.distributed as dist
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy, reduce_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("train")


def pictures(n, seed, size=32, classes=6):
    g = torch.Generator().manual_seed(seed)
    proto = torch.nn.functional.interpolate(
        torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0)), size=(size, size), mode="bilinear")
    y = torch.arange(n) % classes
    gain = 0.6 + 0.4 * torch.rand(n, 1, 1, 1, generator=g)
    return TensorDataset(gain * proto[y] + 0.8 * torch.randn(n, 3, size, size, generator=g), y)


@torch.no_grad()
def validate(model, loader, world):
    model.eval()
    loss_m, top1_m = AverageMeter(), AverageMeter()
    for x, y in loader:
        out = model(x)
        loss = reduce_tensor(torch.nn.functional.cross_entropy(out, y), world)
        top1 = reduce_tensor(accuracy(out, y)[0], world)
        loss_m.update(loss.item(), len(x))
        top1_m.update(top1.item(), len(x))
    return loss_m.avg, top1_m.avg


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="resnet10t")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--ema-decay", type=float, default=0.9)
    ap.add_argument("--output", default="output")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    timm.utils.random_seed(42, rank)
    model = timm.create_model(args.model, num_classes=6, pretrained=False, drop_path_rate=0.0)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) if torch.cuda.is_available() else model
    opt = create_optimizer_v2(model, opt="adamw", lr=args.lr, weight_decay=0.05)
    model = DDP(model)
    ema = ModelEmaV3(model.module, decay=args.ema_decay)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=6)
    loss_fn = SoftTargetCrossEntropy()
    train, val = pictures(768, 1), pictures(240, 2)
    sampler = DistributedSampler(train, seed=42)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, 60, sampler=DistributedSampler(val, shuffle=False))
    steps = len(loader)
    sched = CosineLRScheduler(opt, t_initial=args.epochs * steps, lr_min=1e-5, warmup_t=steps // 2, warmup_lr_init=1e-5,
                              t_in_epochs=False)
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        meter = AverageMeter()
        for i, (x, y) in enumerate(loader):
            n = epoch * steps + i
            x, t = mixup(x, y)
            loss = loss_fn(model(x), t)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model.module, step=n)
            sched.step_update(n + 1)
            meter.update(loss.item(), len(x))
        timm.utils.distribute_bn(model, world, reduce=True)
        timm.utils.distribute_bn(ema.module, world, reduce=True)
        vl, top1 = validate(ema.module, val_loader, world)
        log.info("epoch %d train %.4f ema val %.4f top1 %.2f lr %.2e", epoch, meter.avg, vl, top1, opt.param_groups[0]["lr"])
        if rank == 0 and top1 > best:
            best = top1
            os.makedirs(args.output, exist_ok=True)
            torch.save({"epoch": epoch, "ema": ema.module.state_dict(), "top1": top1}, os.path.join(args.output, "best.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
