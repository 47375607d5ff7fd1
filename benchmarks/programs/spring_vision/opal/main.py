"""Self-distillation without labels, small scale."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import utils
from vision import DINOHead, MultiCropShapes, MultiCropWrapper, PatchTransformer

log = logging.getLogger("dino")


def get_args():
    p = argparse.ArgumentParser("DINO")
    p.add_argument("--out_dim", default=256, type=int)
    p.add_argument("--momentum_teacher", default=0.996, type=float)
    p.add_argument("--teacher_temp", default=0.04, type=float)
    p.add_argument("--batch_size_per_gpu", default=32, type=int)
    p.add_argument("--epochs", default=5, type=int)
    p.add_argument("--lr", default=1e-3, type=float)
    p.add_argument("--weight_decay", default=0.04, type=float)
    p.add_argument("--clip_grad", default=3.0, type=float)
    p.add_argument("--seed", default=0, type=int)
    p.add_argument("--output_dir", default=None)
    return p.parse_args()


class DINOLoss(nn.Module):
    def __init__(self, out_dim, ncrops, teacher_temp, student_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.ncrops, self.teacher_temp, self.student_temp = ncrops, teacher_temp, student_temp
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_out, teacher_out):
        s = (student_out / self.student_temp).chunk(self.ncrops)
        t = F.softmax((teacher_out - self.center) / self.teacher_temp, dim=-1).detach().chunk(2)
        total, terms = 0.0, 0
        for i, q in enumerate(t):
            for j, v in enumerate(s):
                if i == j:
                    continue
                total = total - (q * F.log_softmax(v, dim=-1)).sum(-1).mean()
                terms += 1
        self.update_center(teacher_out)
        return total / terms

    @torch.no_grad()
    def update_center(self, teacher_out):
        c = teacher_out.sum(0, keepdim=True)
        dist.all_reduce(c)
        c /= len(teacher_out) * dist.get_world_size()
        self.center = self.center * self.center_momentum + c * (1 - self.center_momentum)


def build(args):
    def net():
        backbone = PatchTransformer()
        return MultiCropWrapper(backbone, DINOHead(48, args.out_dim))
    student, teacher = net(), net()
    teacher.load_state_dict(student.state_dict())
    student = DistributedDataParallel(student)
    for p in teacher.parameters():
        p.requires_grad = False
    return student, teacher


def train_one_epoch(epoch, loader, student, teacher, criterion, opt, lr_s, m_s, args):
    meter = utils.SmoothedValue()
    for it, (crops, _) in enumerate(loader):
        it += epoch * len(loader)
        for g in opt.param_groups:
            g["lr"] = lr_s[it]
        with torch.no_grad():
            t_out = teacher(crops[:2])
        loss = criterion(student(crops), t_out)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), args.clip_grad)
        if epoch < 1:
            student.module.head.last.weight.grad = None
        opt.step()
        with torch.no_grad():
            m = m_s[it]
            for q, k in zip(student.module.parameters(), teacher.parameters()):
                k.mul_(m).add_(q.detach(), alpha=1 - m)
        meter.update(loss.item())
    return meter.global_avg()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    utils.fix_random_seeds(args.seed + rank)
    out = args.output_dir or tempfile.mkdtemp(prefix="dino-")

    data = MultiCropShapes()
    sampler = DistributedSampler(data, world, rank, shuffle=True)
    loader = DataLoader(data, args.batch_size_per_gpu, sampler=sampler, drop_last=True)

    student, teacher = build(args)
    criterion = DINOLoss(args.out_dim, 4, args.teacher_temp)
    opt = torch.optim.AdamW(utils.get_params_groups(student), lr=args.lr, weight_decay=args.weight_decay)
    total = args.epochs * len(loader)
    lr_s = utils.cosine_scheduler(args.lr, 1e-5, total, warmup=len(loader) // 2)
    m_s = utils.cosine_scheduler(args.momentum_teacher, 1.0, total)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.time()
        loss = train_one_epoch(epoch, loader, student, teacher, criterion, opt, lr_s, m_s, args)
        if rank == 0:
            log.info("epoch %d loss %.4f (%.1fs)", epoch, loss, time.time() - t0)
            torch.save({"student": student.module.state_dict(), "teacher": teacher.state_dict(), "epoch": epoch},
                       os.path.join(out, "checkpoint.pth"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
