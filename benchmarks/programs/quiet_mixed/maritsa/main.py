import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from augment import Augment
from recall import Recaller
from stages import STAGES, stage_loader


def run_stage(model, optim, stage, augment, rank):
    loader, sampler = stage_loader(stage)
    for epoch in range(stage.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for ids, target in loader:
            ids = augment(ids, stage.corrupt)
            loss = torch.nn.functional.cross_entropy(model(ids), target)
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"{stage.name} epoch {epoch} loss {(total[0] / total[1]).item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(50)
    model = DistributedDataParallel(Recaller(vocab=20, width=48))
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3)
    augment = Augment(seed=50_000 + rank, vocab=20)
    for stage in STAGES:
        for group in optim.param_groups:
            group["lr"] = stage.lr
        run_stage(model, optim, stage, augment, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
