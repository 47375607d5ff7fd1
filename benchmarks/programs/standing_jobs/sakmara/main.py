import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from client import RemoteBatches
from server import SampleServer, Shelf

log = logging.getLogger("train")


@dataclass
class Config:
    n: int = 2048
    width: int = 28
    classes: int = 6
    batch: int = 32
    epochs: int = 3
    lr: float = 0.05
    label_smoothing: float = 0.05
    seed: int = 13


class Mlp(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(cfg.width, 64), nn.ReLU(), nn.Dropout(0.1),
                                    nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, cfg.classes))

    def forward(self, x):
        return self.layers(x)


def start_server(cfg):
    server = None
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        server = SampleServer(Shelf(cfg.n, cfg.width, cfg.classes, cfg.seed))
    box = [server.port if server else None]
    dist.broadcast_object_list(box, src=0)
    return server, box[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, batch=args.batch)
    server, port = start_server(cfg)
    data = RemoteBatches(port, cfg.n, cfg.batch, rank, world, cfg.seed)
    loader = DataLoader(data, batch_size=None)

    torch.manual_seed(cfg.seed)
    model = DDP(Mlp(cfg))
    torch.manual_seed(cfg.seed + 100 + rank)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(data))
    log.info("sample server on port %d, %d batches an epoch", port, len(data))

    for epoch in range(cfg.epochs):
        data.set_epoch(epoch)
        tally = torch.zeros(3)
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y, label_smoothing=cfg.label_smoothing)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            tally += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(tally)
        log.info("epoch %d loss %.4f acc %.3f", epoch, tally[0] / tally[2], tally[1] / tally[2])

    data.close()
    dist.barrier()
    if server is not None:
        server.shutdown()
        server.server_close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
