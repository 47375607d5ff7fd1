import logging
import os
import tempfile
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from checkpoint import ShardedCheckpointer
from engine import Engine
from tables import make_split

log = logging.getLogger("indus")


@dataclass
class Options:
    rows: int = 2400
    features: int = 32
    hidden: int = 96
    batch: int = 50
    epochs: int = 14
    lr: float = 0.01
    momentum: float = 0.9
    patience: int = 8
    seed: int = 5
    out: str = ""

    @classmethod
    def from_env(cls):
        kw = {}
        for f in fields(cls):
            raw = os.environ.get("INDUS_" + f.name.upper())
            if raw is not None:
                kw[f.name] = f.type(raw) if callable(f.type) else raw
        return cls(**kw)


def shared_dir(opt, rank):
    box = [opt.out or (tempfile.mkdtemp(prefix="indus_") if rank == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    os.makedirs(box[0], exist_ok=True)
    return box[0]


def main():
    opt = Options.from_env()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(relativeCreated)7d [r{rank}] %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(opt.seed)

    train, val = make_split(opt.rows, opt.features, opt.seed, rank, world)
    engine = Engine(opt, opt.features, rank, world)
    keeper = ShardedCheckpointer(shared_dir(opt, rank), rank, world)

    best, since = float("inf"), 0
    for epoch in range(opt.epochs):
        train_loss = engine.train_epoch(train, epoch)
        val_loss = engine.validate(val)
        if rank == 0:
            log.info("epoch %2d train %.4f val %.4f best %.4f", epoch, train_loss, val_loss, min(best, val_loss))
        if val_loss < best:
            best, since = val_loss, 0
            keeper.save(engine, epoch, val_loss)
        else:
            since += 1
    if rank == 0:
        log.info("best validation %.4f, checkpoint of epoch %s", best, keeper.last_epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
