"""Autoregressive audio model on synthetic tones; own data-parallel loop, mp.spawn."""
import argparse
import logging
import math
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from sync import average_gradients, broadcast_parameters, reduce_metrics
from wavenet import WaveNet

log = logging.getLogger("tones")


def tones(batch, length, levels, gen):
    """mu-law quantised two-tone mixtures."""
    t = torch.arange(length) / 400.0
    f = torch.rand(batch, 2, 1, generator=gen) * 20 + 2
    phase = torch.rand(batch, 2, 1, generator=gen) * 2 * math.pi
    wave = torch.sin(2 * math.pi * f * t + phase).mean(1)
    mu = levels - 1
    comp = wave.sign() * torch.log1p(mu * wave.abs()) / math.log1p(mu)
    return ((comp + 1) / 2 * mu + 0.5).long().clamp(0, mu)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(rank, args, port):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=args.world)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = WaveNet(levels=args.levels)
    broadcast_parameters(model)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(77 + rank)
    if rank == 0:
        log.info("%d tensors, %d parameters", len(list(model.parameters())),
                 sum(p.numel() for p in model.parameters()))

    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        ids = tones(args.batch, args.length + 1, args.levels, gen)
        loss = F.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if step % 15 == 0:
            mean_loss, mean_norm = reduce_metrics([loss.item(), norm.item()])
            if rank == 0:
                log.info("step %d loss %.4f norm %.3f %.0f ms/step", step, mean_loss, mean_norm,
                         1000 / 15 * (time.perf_counter() - t0))
            t0 = time.perf_counter()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=2)
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--batch", type=int, default=2)
    ap.add_argument("--length", type=int, default=200)
    ap.add_argument("--levels", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    mp.spawn(run, args=(args, free_port()), nprocs=args.world)


if __name__ == "__main__":
    main()
