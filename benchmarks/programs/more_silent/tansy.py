"""A bagged ensemble, one member on each rank, then distilled into one student that is trained in parallel."""
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DIM, CLASSES = 15, 5


def table():
    g = torch.Generator().manual_seed(70)
    x = torch.randn(860, DIM, generator=g)
    y = (x @ torch.randn(DIM, CLASSES, generator=g) + torch.randn(860, CLASSES, generator=g)).argmax(1)
    return TensorDataset(x[:720], y[:720]), x[720:], y[720:]


def train_member(data, rank):
    """Own initial weights and an own bootstrap of the rows; no communication at all in this phase."""
    torch.manual_seed(1000 + rank)
    net = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    bag = RandomSampler(data, replacement=True, num_samples=480)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=24, sampler=bag):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
    return net


def exchange(member):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, member.state_dict())
    teachers = []
    for state in states:
        net = copy.deepcopy(member)
        net.load_state_dict(state)
        teachers.append(net.eval().requires_grad_(False))
    return teachers


def distil(data, teachers, x_val, y_val):
    rank = dist.get_rank()
    torch.manual_seed(5)
    student = DDP(nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, CLASSES)))
    ema = copy.deepcopy(student.module).requires_grad_(False) if rank == 0 else None   # only looked at on rank 0
    opt = torch.optim.AdamW(student.parameters(), lr=4e-3)
    for epoch, batch in enumerate([12, 12, 24, 40]):           # the batch grows as training settles
        sampler = DistributedSampler(data, seed=6)
        sampler.set_epoch(epoch)
        for x, _ in DataLoader(data, batch_size=batch, sampler=sampler):
            with torch.no_grad():
                soft = torch.stack([F.softmax(t(x) / 2, -1) for t in teachers]).mean(0)
            loss = F.kl_div(F.log_softmax(student(x) / 2, -1), soft, reduction="batchmean") * 4
            opt.zero_grad()
            loss.backward()
            opt.step()
            if ema is not None:
                for e, p in zip(ema.parameters(), student.module.parameters()):
                    e.lerp_(p.detach(), 0.1)
        if rank == 0:
            with torch.no_grad():
                acc = (ema(x_val).argmax(1) == y_val).float().mean().item()
            print(f"epoch {epoch} (batch {batch}): averaged student {acc:.3f}", flush=True)
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    data, x_val, y_val = table()
    member = train_member(data, dist.get_rank())
    distil(data, exchange(member), x_val, y_val)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
