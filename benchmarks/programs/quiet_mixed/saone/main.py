import torch
import torch.distributed as dist
from torch import nn

from archive import Archive
from stream import stream_loader

CFG = dict(frames=1024, shape=(3, 6, 6), per_epoch=512, batch=16, workers=2, epochs=4, lr=1e-3, seed=14)


def regressor(shape):
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * shape[1] * shape[2], 48), nn.ReLU(), nn.Linear(48, 3), nn.Tanh(),
    )


def run_epoch(model, optim, loader):
    total = torch.zeros(2)
    for frames, angles in loader:
        loss = nn.functional.smooth_l1_loss(model(frames), angles)
        optim.zero_grad()
        loss.backward()
        optim.step()
        total += torch.tensor([loss.item() * len(frames), len(frames)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(CFG["seed"])
    stream, loader = stream_loader(CFG, Archive(CFG["frames"], CFG["shape"], CFG["seed"]))
    model = nn.parallel.DistributedDataParallel(regressor(CFG["shape"]))
    optim = torch.optim.AdamW(model.parameters(), lr=CFG["lr"])
    for epoch in range(CFG["epochs"]):
        stream.set_epoch(epoch)
        loss = run_epoch(model, optim, loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss:.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
