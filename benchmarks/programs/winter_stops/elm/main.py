"""Sensor forecasting, data parallel with per-worker telemetry."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import SensorStream
from telemetry import Recorder, Reporter

log = logging.getLogger("forecast")


def build(width, hidden):
    return nn.Sequential(
        nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 4)
    )


def local_norm(loss, params):
    grads = torch.autograd.grad(loss, params, retain_graph=True)
    return torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=180)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--width", type=int, default=96)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--out", default=f"/tmp/forecast-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format=f"[{rank}] %(message)s")
    folder = os.path.join(args.out, f"worker{rank}")
    os.makedirs(folder, exist_ok=True)

    torch.manual_seed(0)
    net = build(args.width, args.hidden)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = SensorStream(unit=rank, width=args.width, batch=args.batch)
    recorder = Recorder(folder)
    reporter = Reporter(recorder)
    reporter.start()

    for step in range(1, args.steps + 1):
        x, y = next(stream)
        probe = local_norm(nn.functional.mse_loss(net(x), y), list(net.parameters()))
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        opt.step()
        recorder.record(step, loss=loss.item(), grad_norm=probe, lr=args.lr)

    final = torch.tensor([loss.item()])
    dist.all_reduce(final, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    reporter.close()
    rows, n = recorder.drain()
    log.info("finished: %d rows kept, loss %.4f", n, final.item() / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
