"""Self-distillation pre-training on synthetic spectra (DINO-style, small scale)."""
import argparse
import copy
import logging
import math
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from losses import SelfDistillLoss
from nets import Backbone, MultiCropWrapper, ProjectionHead
from spectra import MultiCropSpectra, collate_crops

log = logging.getLogger("pretrain")


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--samples", type=int, default=640)
    p.add_argument("--out-dim", type=int, default=96)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--min-lr", type=float, default=1e-5)
    p.add_argument("--weight-decay", type=float, default=0.04)
    p.add_argument("--momentum-teacher", type=float, default=0.99)
    p.add_argument("--local-crops", type=int, default=3)
    p.add_argument("--clip-grad", type=float, default=3.0)
    p.add_argument("--freeze-last-layer", type=int, default=1)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--output", default="runs/pretrain")
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


def cosine(base, final, total, warmup=0, start=0.0):
    out = []
    for it in range(total):
        if it < warmup:
            out.append(start + (base - start) * it / max(1, warmup))
        else:
            q = (it - warmup) / max(1, total - warmup)
            out.append(final + 0.5 * (base - final) * (1 + math.cos(math.pi * q)))
    return out


def param_groups(model, wd):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        (plain if name.endswith(".bias") or p.ndim == 1 else decay).append(p)
    return [{"params": decay, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}]


def cancel_last_layer(epoch, model, n):
    if epoch >= n:
        return
    for name, p in model.named_parameters():
        if "last_layer" in name:
            p.grad = None


def build(args):
    student = MultiCropWrapper(Backbone(64, 48), ProjectionHead(48, args.out_dim))
    teacher = copy.deepcopy(student)
    student = DDP(student)
    for p in teacher.parameters():
        p.requires_grad_(False)
    return student, teacher


def train_epoch(epoch, student, teacher, criterion, loader, opt, sched, args):
    lr_s, mom_s = sched
    student.train()
    total, n = 0.0, 0
    for it, crops in enumerate(loader):
        step = epoch * len(loader) + it
        for g in opt.param_groups:
            g["lr"] = lr_s[step]
        with torch.no_grad():
            t_out = teacher(crops[:2])
        s_out = student(crops)
        loss = criterion(s_out, t_out, epoch)
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"loss is {loss.item()}")
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), args.clip_grad)
        cancel_last_layer(epoch, student, args.freeze_last_layer)
        opt.step()
        with torch.no_grad():
            m = mom_s[step]
            for ps, pt in zip(student.module.parameters(), teacher.parameters()):
                pt.mul_(m).add_(ps.detach(), alpha=1 - m)
        total += loss.item()
        n += 1
    stat = torch.tensor([total, float(n)], dtype=torch.float64)
    dist.all_reduce(stat)
    return (stat[0] / stat[1]).item()


@torch.no_grad()
def feature_std(teacher, loader):
    feats = torch.cat([teacher.backbone(c[0]) for c in loader])
    feats = torch.nn.functional.normalize(feats, dim=-1)
    s = feats.std(0).mean()
    dist.all_reduce(s)
    return (s / dist.get_world_size()).item()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)

    ds = MultiCropSpectra(args.samples, n_local=args.local_crops, seed=args.seed, salt=rank)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers,
                        collate_fn=collate_crops, drop_last=True)

    student, teacher = build(args)
    criterion = SelfDistillLoss(args.out_dim, n_crops=args.local_crops + 2, warmup_epochs=2, epochs=args.epochs)
    opt = torch.optim.AdamW(param_groups(student, args.weight_decay))
    total = args.epochs * len(loader)
    sched = (cosine(args.lr, args.min_lr, total, warmup=len(loader) // 2), cosine(args.momentum_teacher, 1.0, total))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ds.set_epoch(epoch)
        loss = train_epoch(epoch, student, teacher, criterion, loader, opt, sched, args)
        log.info("epoch %d loss %.4f feat_std %.4f", epoch, loss, feature_std(teacher, loader))
        if rank == 0:
            os.makedirs(args.output, exist_ok=True)
            torch.save({"student": student.module.state_dict(), "teacher": teacher.state_dict(),
                        "criterion": criterion.state_dict(), "opt": opt.state_dict(), "epoch": epoch + 1},
                       os.path.join(args.output, "last.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
