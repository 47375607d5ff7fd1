"""Toy detector with a detectron2-like evaluator that gathers the predictions of all ranks."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluator import BoxEvaluator
from scenes import SceneDataset

log = logging.getLogger("det")


class GridDetector(nn.Module):
    """Predicts objectness and a box for each cell of an 8x8 grid."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU())
        self.obj = nn.Conv2d(32, 1, 1)
        self.box = nn.Conv2d(32, 4, 1)

    def forward(self, x):
        h = self.body(x)
        return self.obj(h).squeeze(1), self.box(h)

    def detect(self, x, threshold):
        obj, box = self(x)
        score = obj.sigmoid()
        out = []
        for s, b in zip(score, box):
            keep = (s > threshold).nonzero()
            out.append([(float(s[i, j]), b[:, i, j].tolist(), (int(i), int(j))) for i, j in keep])
        return out


def loss_fn(obj, box, t_obj, t_box):
    l = F.binary_cross_entropy_with_logits(obj, t_obj, pos_weight=torch.tensor(6.0))
    m = t_obj.unsqueeze(1)
    return l + ((box - t_box).abs() * m).sum() / m.sum().clamp(min=1)


def evaluate(model, data, rank, world, threshold):
    ev = BoxEvaluator(rank, world)
    model.eval()
    with torch.no_grad():
        chunk = (len(data) + world - 1) // world
        for i in range(rank * chunk, min(len(data), (rank + 1) * chunk), 16):
            img, t_obj, t_box = data.slice(i, min(i + 16, (rank + 1) * chunk, len(data)))
            ev.process(i, t_obj, model.detect(img, threshold))
    model.train()
    return ev.evaluate()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=160)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--threshold", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(name)s: %(message)s")

    train, val = SceneDataset(1200, seed=1), SceneDataset(180, seed=2, tail_empty=60)
    torch.manual_seed(0)
    model = DDP(GridDetector())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(0)
    for it in range(1, args.iters + 1):
        idx = torch.randint(0, len(train), (world, args.batch_size), generator=g)[rank]
        img, t_obj, t_box = train.pick(idx)
        loss = loss_fn(*model(img), t_obj, t_box)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and it % 20 == 0:
            log.info("iter %d loss %.4f", it, loss.item())
        if it % args.eval_every == 0:
            res = evaluate(model.module, val, rank, world, args.threshold)
            if rank == 0:
                log.info("iter %d %s", it, res)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
