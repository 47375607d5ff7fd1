"""Self-distillation without labels on synthetic multi-view data."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from dino import EMATeacher, Projector, SelfDistillationLoss
from views import MultiView

log = logging.getLogger("ssl")


@torch.no_grad()
def assignment_stats(teacher, criterion, views):
    logits = teacher(torch.cat(views[:2]))
    probs = torch.softmax((logits - criterion.center) / criterion.teacher_temp, dim=-1)
    marginal = probs.mean(0)
    dist.all_reduce(marginal)
    marginal /= dist.get_world_size()
    entropy = -(marginal * marginal.clamp_min(1e-12).log()).sum()
    return entropy.item(), int((marginal > 1e-2).sum())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--clusters", type=int, default=16)
    p.add_argument("--out_dim", type=int, default=64)
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--ema", type=float, default=0.97)
    p.add_argument("--seed", type=int, default=2)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    student = Projector(args.dim, 96, 32, args.out_dim)
    teacher = EMATeacher(student, args.ema)
    student = DDP(student)
    criterion = SelfDistillationLoss(args.out_dim)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.04)
    data = MultiView(args.dim, args.clusters, args.seed, rank)

    for step in range(args.steps):
        views, _ = data.next(args.batch_size)
        with torch.no_grad():
            teacher_out = teacher.model(torch.cat(views[:2]))
        student_out = student(torch.cat(views))
        loss = criterion(student_out, teacher_out, data.n_views)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        optimizer.step()
        teacher.update(student.module, step / args.steps)
        if step % 20 == 0 or step == args.steps - 1:
            entropy, used = assignment_stats(teacher.model, criterion, views)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %3d loss %.4f marginal entropy %.3f prototypes in use %d", step, mean.item() / world,
                         entropy, used)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
