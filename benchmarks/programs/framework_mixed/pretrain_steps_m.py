import dataclasses
import itertools

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclasses.dataclass
class TrainConfig:
    max_steps: int = 90
    batch_size: int = 16
    warmup: int = 10
    lr: float = 1e-3
    log_every: int = 15
    seed: int = 17


class Sines(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        f = 1 + 4 * torch.rand(1, generator=g)
        t = torch.linspace(0, 1, 33)
        s = torch.sin(6.28 * f * t)
        return s[:-1], s[1:]


class InfiniteLoader:
    """Endless stream over a DataLoader with its distributed sampler."""

    def __init__(self, loader):
        self.loader = loader
        self.epoch = 0

    def __iter__(self):
        while True:
            self.loader.sampler.set_epoch(self.epoch)
            yield from self.loader
            self.epoch += 1


class GRUForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 48, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.rnn(x.unsqueeze(-1))[0]).squeeze(-1)


def main(cfg):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = DDP(GRUForecaster())
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / cfg.warmup))
    ds = Sines()
    loader = DataLoader(ds, cfg.batch_size, sampler=DistributedSampler(ds, seed=cfg.seed), drop_last=True)
    stream = InfiniteLoader(loader)
    for step, (x, y) in enumerate(itertools.islice(stream, cfg.max_steps), 1):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % cfg.log_every == 0:
            avg = loss.detach().clone()
            dist.all_reduce(avg)
            if rank == 0:
                print(f"step {step} loss {avg.item() / world:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(TrainConfig())
