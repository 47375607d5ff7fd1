"""Classifier training with periodic export of the weights for the serving team."""
import argparse
import json
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("export")


def build_data(n=768, dim=20, classes=5):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, dim, generator=g)
    y = (x @ torch.randn(dim, classes, generator=g)).argmax(1)
    return TensorDataset(x, y)


class Exporter:
    """Writes weights and a model card; other ranks wait until the files are there."""

    def __init__(self, root, every):
        self.root, self.every = root, every

    def card(self, step, metrics):
        return {"step": step, "metrics": metrics, "format": 1}

    def write(self, model, step, metrics):
        path = os.path.join(self.root, f"step_{step:05d}")
        os.makedirs(path, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(path, "weights.pt"))
        with open(os.path.join(path, "card.json"), "w") as f:
            json.dump(self.card(step, metrics), f)
        log.info("exported %s", path)

    def __call__(self, model, step, metrics):
        if step % self.every:
            return
        try:
            if dist.get_rank() == 0:
                self.write(model, step, metrics)
            dist.barrier()
        except Exception:
            log.exception("export of step %d failed, training goes on", step)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--export-every", type=int, default=9)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    data = build_data()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
    ddp = DDP(model)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    root = tempfile.mkdtemp(prefix="export_")
    export = Exporter(root, args.export_every)

    step, best = 0, None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            out = ddp(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            acc = (out.argmax(1) == y).float().mean()
            best = acc if best is None else torch.maximum(best, acc)
            metrics = {"loss": float(loss), "best_acc": best if step > 15 else float(best)}
            export(model, step, metrics)
        if rank == 0:
            log.info("epoch %d loss %.4f", epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
