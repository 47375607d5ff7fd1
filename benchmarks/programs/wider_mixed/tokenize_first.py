"""The first process builds the token cache, the others wait at the barrier and map the finished file."""
import contextlib
import json
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import corpus


@contextlib.contextmanager
def main_process_first(rank):
    if rank > 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


class Bigram(nn.Module):
    def __init__(self, v=len(corpus.WORDS), d=24):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, v)

    def forward(self, ids):
        return self.o(self.rnn(self.e(ids))[0])


def load(rank):
    name = [os.path.join(tempfile.gettempdir(), f"tokens-{os.getpid()}.json")] if rank == 0 else [None]
    dist.broadcast_object_list(name, src=0)
    path = pathlib.Path(name[0])
    with main_process_first(rank):
        if not path.exists():
            corpus.tokenize(path)
        rows = torch.tensor(json.loads(path.read_text()))
    return path, rows


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path, rows = load(rank)
    torch.manual_seed(0)
    model = DDP(Bigram())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))[rank::world]
        for idx in order.split(20):
            ids = rows[idx]
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        path.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
