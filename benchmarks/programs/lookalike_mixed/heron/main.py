import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler

FILES, ROWS = 8, 64


class Part(Dataset):
    def __init__(self, path):
        self.x, self.y = torch.load(path)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def write_parts(folder):
    g = torch.Generator().manual_seed(50)
    for i in range(FILES):
        x = torch.randn(ROWS, 10, generator=g)
        torch.save((x, x[:, :2].prod(1)), os.path.join(folder, f"part-{i:02d}.pt"))


def prepare():
    box = [None]
    if dist.get_rank() == 0:
        box[0] = tempfile.mkdtemp(prefix="parts_")
        write_parts(box[0])
    dist.broadcast_object_list(box)
    return box[0]


def local_loader(folder, batch):
    names = sorted(os.listdir(folder))
    mine = names[dist.get_rank() :: dist.get_world_size()]
    rows = ConcatDataset([Part(os.path.join(folder, n)) for n in mine])
    sampler = DistributedSampler(rows, num_replicas=1, rank=0, shuffle=True, seed=8)
    return DataLoader(rows, batch_size=batch, sampler=sampler)


def main():
    dist.init_process_group("gloo")
    loader = local_loader(prepare(), 32)
    torch.manual_seed(6)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        losses = []
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        if dist.get_rank() == 0:
            print(f"epoch {epoch} {float(torch.stack(losses).mean()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
