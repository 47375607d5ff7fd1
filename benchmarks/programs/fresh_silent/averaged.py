import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Inputs(Dataset):
    def __init__(self, n=800, dim=20, seed=3):
        self.x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def teacher_net():
    torch.manual_seed(1234)
    net = nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 5))
    return net.eval().requires_grad_(False)


def student_net():
    torch.manual_seed(4321)
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))


def distill_loss(student_logits, teacher_logits, t=2.0):
    return F.kl_div((student_logits / t).log_softmax(-1), (teacher_logits / t).softmax(-1), reduction="batchmean") * t * t


@torch.no_grad()
def agreement(model, teacher, loader):
    model.eval()
    hits = sum((model(x).argmax(-1) == teacher(x).argmax(-1)).sum().item() for x in loader)
    return hits / len(loader.dataset)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--average-from", type=int, default=3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    teacher = teacher_net()
    model = DDP(student_net())
    averaged = AveragedModel(model.module)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    swa_lr = SWALR(opt, swa_lr=0.02, anneal_epochs=2)
    data = Inputs()
    sampler = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x in loader:
            with torch.no_grad():
                soft = teacher(x)
            loss = distill_loss(model(x), soft)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch >= args.average_from:
            averaged.update_parameters(model.module)
            swa_lr.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        update_bn(DataLoader(data, batch_size=50), averaged)
        print(f"agreement {agreement(averaged, teacher, DataLoader(Inputs(400, seed=77), batch_size=100)):.3f}", flush=True)
        torch.save(averaged.module.state_dict(), "averaged.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
