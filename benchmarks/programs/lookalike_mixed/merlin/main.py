import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from session import Session

TOTAL, CUT = 6, 3


def network():
    return nn.Sequential(nn.Linear(18, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 5))


def loader():
    g = torch.Generator().manual_seed(60)
    x = torch.randn(576, 18, generator=g)
    ds = TensorDataset(x, x[:, :5].argmax(1))
    return DataLoader(ds, batch_size=24, sampler=DistributedSampler(ds, seed=4), drop_last=True)


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="run_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    path = os.path.join(box[0], "last.pt")
    torch.manual_seed(25)
    data = loader()
    horizon = TOTAL * len(data)
    first = Session(DDP(network()), horizon)
    first.run(data, range(CUT))
    first.save(path)
    dist.barrier()
    del first
    second = Session(DDP(network()), horizon)
    start = second.load(path)
    second.run(data, range(start, TOTAL))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
