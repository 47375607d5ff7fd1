import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def rows(n, seed, shift):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 15, generator=g) + shift
    return TensorDataset(x, (x[:, :4] * x[:, 4:8]).sum(1, keepdim=True).tanh())


def stage(model, opt, sched, ds, epochs, label):
    loader = DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds, seed=len(label)), drop_last=True)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        losses = []
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            losses.append(loss.detach())
        if dist.get_rank() == 0:
            print(f"{label} {epoch} {float(torch.stack(losses).mean()):.4f}", flush=True)


def store(path, model, opt, sched):
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": opt.state_dict(), "sched": sched.state_dict()}, path)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="stages_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    path = os.path.join(box[0], "pretrain.pt")
    torch.manual_seed(71)
    model = DDP(nn.Sequential(nn.Linear(15, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=60)
    stage(model, opt, sched, rows(640, 1, 0.0), 3, "pretrain")
    store(path, model, opt, sched)

    saved = torch.load(path, map_location="cpu")
    model.module.load_state_dict(saved["model"])
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=10)
    stage(model, opt, sched, rows(320, 2, 0.5), 3, "tune")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
