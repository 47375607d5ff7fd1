"""Set-prediction detector on toy scenes: bipartite matching, class and box losses."""
import argparse
import datetime
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from criterion import HungarianMatcher, SetCriterion
from scenes import Scenes, collate_fn
from transformer import TinyDetr


def parser():
    p = argparse.ArgumentParser("detector", add_help=False)
    p.add_argument("--lr", default=2e-2, type=float)
    p.add_argument("--lr_backbone", default=5e-3, type=float)
    p.add_argument("--lr_drop", default=2, type=int)
    p.add_argument("--batch_size", default=8, type=int)
    p.add_argument("--epochs", default=3, type=int)
    p.add_argument("--scenes", default=192, type=int)
    p.add_argument("--num_queries", default=8, type=int)
    p.add_argument("--clip_max_norm", default=0.0, type=float)
    p.add_argument("--bbox_loss_coef", default=5.0, type=float)
    p.add_argument("--giou_loss_coef", default=2.0, type=float)
    p.add_argument("--eos_coef", default=0.2, type=float)
    p.add_argument("--seed", default=42, type=int)
    p.add_argument("--output_dir", default="det_out")
    return p


def reduce_dict(d):
    names = sorted(d)
    v = torch.stack([torch.as_tensor(d[k], dtype=torch.float32) for k in names])
    dist.all_reduce(v)
    v /= dist.get_world_size()
    return dict(zip(names, v.tolist()))


def train_one_epoch(model, criterion, loader, opt, epoch, max_norm):
    model.train()
    criterion.train()
    meter, n = {}, 0
    for images, targets in loader:
        out = model(images)
        loss_dict = criterion(out, targets)
        w = criterion.weight_dict
        loss = sum(loss_dict[k] * w[k] for k in loss_dict if k in w)
        opt.zero_grad()
        loss.backward()
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        opt.step()
        for k, v in loss_dict.items():
            meter[k] = meter.get(k, 0.0) + v.detach()
        n += 1
    return reduce_dict({k: v / n for k, v in meter.items()})


@torch.no_grad()
def evaluate(model, loader, matcher):
    """Mean IoU of matched boxes and accuracy of their classes over the rank's own part."""
    model.eval()
    acc = torch.zeros(3)
    for images, targets in loader:
        out = model(images)
        for b, (src, tgt) in enumerate(matcher(out, targets)):
            iou = matcher.pair_iou(out["boxes"][b, src], targets[b]["boxes"][tgt])
            hit = out["logits"][b, src].argmax(-1) == targets[b]["labels"][tgt]
            acc += torch.tensor([iou.sum().item(), hit.float().sum().item(), float(len(src))])
    dist.all_reduce(acc)
    return {"iou": (acc[0] / acc[2]).item(), "cls": (acc[1] / acc[2]).item()}


def main(args):
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)

    train_set = Scenes(args.scenes, seed=1)
    val_idx = range(rank, 64, world)
    val_set = torch.utils.data.Subset(Scenes(64, seed=2), list(val_idx))
    sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, batch_sampler=BatchSampler(sampler, args.batch_size, drop_last=True),
                              collate_fn=collate_fn)
    val_loader = DataLoader(val_set, args.batch_size, collate_fn=collate_fn)

    model = TinyDetr(num_classes=Scenes.num_classes, num_queries=args.num_queries)
    matcher = HungarianMatcher(1.0, args.bbox_loss_coef, args.giou_loss_coef)
    criterion = SetCriterion(Scenes.num_classes, matcher, args.eos_coef,
                             {"loss_ce": 1.0, "loss_bbox": args.bbox_loss_coef, "loss_giou": args.giou_loss_coef})
    ddp = DistributedDataParallel(model)
    groups = [{"params": [p for n, p in model.named_parameters() if not n.startswith("backbone")]},
              {"params": model.backbone.parameters(), "lr": args.lr_backbone}]
    opt = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, args.lr_drop)

    t0 = time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        stats = train_one_epoch(ddp, criterion, train_loader, opt, epoch, args.clip_max_norm)
        sched.step()
        val = evaluate(model, val_loader, matcher)
        if rank == 0:
            os.makedirs(args.output_dir, exist_ok=True)
            line = {"epoch": epoch, **{k: round(v, 4) for k, v in {**stats, **val}.items()}}
            print(json.dumps(line), flush=True)
            with open(os.path.join(args.output_dir, "log.txt"), "a") as f:
                f.write(json.dumps(line) + "\n")
            torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "lr_scheduler": sched.state_dict(),
                        "epoch": epoch, "args": vars(args)}, os.path.join(args.output_dir, "checkpoint.pth"))
    if rank == 0:
        print("training time", datetime.timedelta(seconds=int(time.time() - t0)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(argparse.ArgumentParser(parents=[parser()]).parse_args())
