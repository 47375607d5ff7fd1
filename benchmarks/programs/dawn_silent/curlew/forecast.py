"""Streaming LSTM forecaster. The recordings live in shards that are read in order by loader workers."""
import itertools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, PER_SHARD, LENGTH = 16, 192, 32


def read_shard(index):
    """Each shard holds the recordings of one station, with its own pitch and shape."""
    g = torch.Generator().manual_seed(9000 + index)
    t = torch.arange(LENGTH + 1).float()
    freq = 0.15 + 0.06 * index
    for _ in range(PER_SHARD):
        phase, amp = torch.rand(2, generator=g) * torch.tensor([6.28, 1.0]) + torch.tensor([0.0, 0.5])
        wave = amp * torch.sin(freq * t + phase) + 0.3 * torch.sin(2 * freq * t + 2 * phase)
        yield wave + 0.02 * torch.randn(LENGTH + 1, generator=g)


class ShardStream(IterableDataset):
    def __init__(self, shards, buffer=64):
        self.shards, self.buffer, self.epoch = list(shards), buffer, 0

    def __iter__(self):
        info = get_worker_info()
        reader = int(os.environ["RANK"]) * info.num_workers + info.id
        mine = self.shards[reader::int(os.environ["WORLD_SIZE"]) * info.num_workers]
        rng = torch.Generator().manual_seed(self.epoch)
        pool = []
        for sample in itertools.chain.from_iterable(read_shard(s) for s in mine):
            pool.append(sample)
            if len(pool) >= self.buffer:
                yield pool.pop(int(torch.randint(len(pool), (1,), generator=rng)))
        while pool:
            yield pool.pop(int(torch.randint(len(pool), (1,), generator=rng)))


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(-1))
        return self.out(h).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(21)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    batch_size, epochs = 32, 4
    steps_per_epoch = SHARDS * PER_SHARD // (batch_size * world)
    stream = ShardStream(range(SHARDS))
    loader = DataLoader(stream, batch_size=batch_size, num_workers=2, drop_last=True)
    for epoch in range(epochs):
        stream.epoch = epoch
        running = torch.zeros(2)
        for step, wave in enumerate(itertools.islice(loader, steps_per_epoch)):
            pred = model(wave[:, :-1])
            loss = nn.functional.mse_loss(pred, wave[:, 1:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            running += torch.tensor([loss.item(), 1.0])
            if rank == 0 and step % 16 == 0:
                print(f"epoch {epoch} step {step}/{steps_per_epoch} mse {loss.item():.4f}", flush=True)
        dist.all_reduce(running)
        if rank == 0:
            print(f"epoch {epoch} mean mse {running[0] / running[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
