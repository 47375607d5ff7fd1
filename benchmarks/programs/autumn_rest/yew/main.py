import argparse
import logging
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from writer import BackgroundWriter, latest, read

log = logging.getLogger("train")

CONFIG = dict(dim=256, hidden=1024, layers=4, classes=64, batch=32, lr=6e-4, save_every=20, total=96, first_leg=48)


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(cfg["dim"], cfg["hidden"]) for _ in range(cfg["layers"])])
        self.head = nn.Linear(cfg["dim"], cfg["classes"])

    def forward(self, x):
        return self.head(self.blocks(x))


class Trainer:
    def __init__(self, cfg, folder):
        self.cfg = cfg
        self.folder = folder
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.net = Classifier(cfg)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=cfg["lr"])
        self.step = 0
        place = latest(folder)
        if place:
            self.restore(read(place))
            log.info("continuing from %s at step %d", place, self.step)
        self.model = DDP(self.net)
        self.writer = BackgroundWriter(folder) if self.rank == 0 else None
        self.centers = torch.randn(cfg["classes"], cfg["dim"], generator=torch.Generator().manual_seed(3))

    def state(self):
        optim = self.optimizer.state_dict()
        return {
            "step": self.step,
            "net": dict(self.net.state_dict()),
            "moments": optim["state"],
            "groups": {"list": optim["param_groups"]},
        }

    def restore(self, state):
        self.step = state["step"]
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict({"state": state["moments"], "param_groups": state["groups"]["list"]})

    def batch(self):
        gen = torch.Generator().manual_seed(self.step * dist.get_world_size() + self.rank)
        y = torch.randint(0, self.cfg["classes"], (self.cfg["batch"],), generator=gen)
        x = self.centers[y] + torch.randn(len(y), self.cfg["dim"], generator=gen) * 2.5
        return x, y

    def fit(self, until):
        while self.step < until:
            x, y = self.batch()
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 10 == 0:
                log.info("step %d loss %.4f", self.step, loss.item())
            if self.step % self.cfg["save_every"] == 0 and self.writer is not None:
                self.writer.submit(self.step, self.state())
        if self.writer is not None:
            self.writer.wait()
        dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=None)
    p.add_argument("--total", type=int, default=CONFIG["total"])
    args = p.parse_args()
    cfg = dict(CONFIG, total=args.total)
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(levelname)s %(message)s")
    where = [args.out or tempfile.mkdtemp(prefix="clf-")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(where)

    for until in (cfg["first_leg"], cfg["total"]):
        Trainer(cfg, where[0]).fit(until)
    log.info("done")
    dist.barrier()
    if dist.get_rank() == 0 and args.out is None:
        shutil.rmtree(where[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
