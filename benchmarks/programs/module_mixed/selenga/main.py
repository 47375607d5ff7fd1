import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from saver import BackgroundSaver

STEPS, SAVE_EVERY, BATCH = 20, 5, 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 96), nn.Linear(96, 1)

    def forward(self, x):
        return self.b(torch.sin(self.a(x)))


def batches(rank):
    g = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.rand(BATCH, 8, generator=g) * 2 - 1
        yield x, (3 * x[:, :1]).sin() * x[:, 1:2]


def verify(path, model):
    state = torch.load(path, map_location="cpu")
    mine = model.module.state_dict()
    return all(torch.equal(state[k], mine[k]) for k in mine)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    saver = BackgroundSaver(tempfile.mkdtemp(prefix="bg_")) if rank == 0 else None
    for step, (x, y) in enumerate(batches(rank), 1):
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if saver and step % SAVE_EVERY == 0:
            saver.submit(step, model.module.state_dict())
    paths = saver.close() if saver else None
    box = [paths[-1] if paths else None]
    dist.broadcast_object_list(box, src=0)
    same = torch.tensor(int(verify(box[0], model)))
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    if rank == 0:
        print(f"loss {loss.item():.4f} saved {len(paths)} equal {bool(same)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
