"""Several teachers, one per rank, are distilled into a common student with a domain embedding."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from teachers import Teacher, domain_batch

STEPS, BATCH, TEMP = 24, 32, 2.0


class Student(nn.Module):
    def __init__(self, domains):
        super().__init__()
        self.domain = nn.Parameter(torch.zeros(domains, 48))
        self.inp, self.mid, self.out = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 5)

    def forward(self, x, domain):
        pick = F.one_hot(torch.tensor(domain), self.domain.size(0)).float()
        h = torch.relu(self.inp(x) + pick @ self.domain)
        return self.out(torch.relu(self.mid(h)))


def kd(student, teacher):
    return F.kl_div(F.log_softmax(student / TEMP, -1), F.softmax(teacher / TEMP, -1), reduction="batchmean") * TEMP ** 2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = DDP(Student(world))
    teacher = Teacher(rank)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    g = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x = domain_batch(rank, g, BATCH)
        loss = kd(model(x, rank), teacher(x))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 6 == 0:
            both = loss.detach().clone()
            dist.all_reduce(both, op=dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step} kd {both.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
