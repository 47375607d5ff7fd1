"""Streamed robot clips, reshuffled every epoch, split over ranks and loader workers."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ClipStream(IterableDataset):
    def __init__(self, clips, rank, world, seed=0):
        self.clips, self.rank, self.world, self.seed = clips, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def read_clip(self, i):
        g = torch.Generator().manual_seed(i)
        state = torch.randn(12, generator=g)
        action = torch.stack([state[:4].sum(), state[4:8].prod().tanh(), state[8:].norm()])
        return state, action

    def __iter__(self):
        info = get_worker_info()
        workers, wid = (info.num_workers, info.id) if info else (1, 0)
        order = torch.randperm(self.clips, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for i in order[self.rank * workers + wid::self.world * workers].tolist():
            yield self.read_clip(i)


class Policy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def make_loader(stream):
    return DataLoader(
        stream,
        batch_size=16,
        num_workers=2,
        persistent_workers=False,
        drop_last=True,
    )


def run():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stream = ClipStream(512, rank, world, seed=42)
    loader = make_loader(stream)
    policy = DDP(Policy())
    opt = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for epoch in range(4):
        stream.set_epoch(epoch)
        seen = 0.0
        for state, action in loader:
            loss = nn.functional.smooth_l1_loss(policy(state), action)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += loss.item()
        if rank == 0:
            print(f"epoch {epoch}: {seen / 16:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
