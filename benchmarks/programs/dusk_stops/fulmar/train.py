"""Sequence regression with FSDP2; a monitor thread aggregates throughput on a group of its own and
checkpoints are uploaded with retries."""
import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from monitor import ThroughputMonitor
from upload import Bucket, upload_with_retry

log = logging.getLogger("seqreg")


class Mixer(nn.Module):
    def __init__(self, t, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.time = nn.Linear(t, t)
        self.feat = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        x = x + self.time(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feat(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, t=32, d=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.layers = nn.ModuleList(Mixer(t, d) for _ in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        h = self.inp(x)
        for l in self.layers:
            h = l(h)
        return self.out(h.mean(1)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--save-every", type=int, default=75)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--report-interval", type=float, default=2.0)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")

    torch.manual_seed(0)
    model = Forecaster()
    for l in model.layers:
        fully_shard(l)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(dist.new_group(), args.report_interval)
    monitor.start()
    bucket = Bucket(args.out or tempfile.mkdtemp(prefix="bucket_"))
    w = torch.randn(32, 4, generator=torch.Generator().manual_seed(6)) / 8
    g = torch.Generator().manual_seed(500 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch_size, 32, 4, generator=g)
        loss = F.mse_loss(model(x), (x * w).sum((1, 2)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        monitor.add(len(x))
        if rank == 0 and step % 25 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % args.save_every == 0:
            state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            if rank == 0:
                upload_with_retry(bucket, f"step{step}.pt", state)
            dist.barrier()
    monitor.stop()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
