"""Fully sharded GPT with asynchronous distributed checkpoints and a restart.

    torchrun --nproc-per-node 2 shad/main.py
"""
import argparse
import logging
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gpt import GPT, GPTConfig
from state import RankStream, TrainState

log = logging.getLogger("fsdp")


@dataclass
class Config:
    vocab: int = 48
    seq: int = 16
    layers: int = 2
    dim: int = 48
    batch: int = 8
    steps: int = 16
    segment: int = 8
    save_every: int = 4
    lr: float = 4e-3
    clip: float = 1.0
    seed: int = 61
    root: str = "shad_ckpt"


class AsyncSaver:
    """At most one save in flight, on its own process group, finished before the next one."""

    def __init__(self, root: str, keep: int = 2):
        self.root, self.keep = Path(root), keep
        self.group = dist.new_group(backend="gloo")
        self.pending, self.done = None, []

    def wait(self):
        if self.pending is None:
            return
        path, future = self.pending
        future.result()
        self.pending = None
        self.done.append(path)
        dist.barrier(group=self.group)
        if dist.get_rank() == 0:
            for old in self.done[:-self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        self.done = self.done[-self.keep:]

    def save(self, state: TrainState):
        self.wait()
        path = self.root / f"step_{state.step:05d}"
        self.pending = (path, dcp.async_save(state.state_dict(), checkpoint_id=str(path), process_group=self.group))

    def latest(self):
        return self.done[-1] if self.done else None


class Segment:
    """Everything that a fresh process would build."""

    def __init__(self, cfg: Config, mesh, saver: AsyncSaver):
        self.cfg, self.saver = cfg, saver
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        model = GPT(GPTConfig(vocab_size=cfg.vocab, block_size=cfg.seq, n_layer=cfg.layers, n_embd=cfg.dim))
        for b in model.blocks:
            fully_shard(b, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
        stream = RankStream(cfg.vocab, cfg.seq, cfg.batch, rank, world, cfg.seed)
        self.state = TrainState(self.model, self.opt, stream)
        path = saver.latest()
        if path is not None:
            sd = self.state.state_dict()
            dcp.load(sd, checkpoint_id=str(path))
            self.state.load_state_dict(sd)
        if rank == 0:
            log.info("segment from step %d (%s)", self.state.step, path)

    def lr(self, step: int) -> float:
        c = self.cfg
        return c.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * step / c.steps)))

    def run(self):
        c, s = self.cfg, self.state
        end = min(c.steps, s.step + c.segment)
        while s.step < end:
            for g in self.opt.param_groups:
                g["lr"] = self.lr(s.step)
            x, y = s.stream.next()
            loss = F.cross_entropy(self.model(x).reshape(-1, c.vocab), y.reshape(-1))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.clip).full_tensor()
            self.opt.step()
            s.step += 1
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0 and s.step % 2 == 0:
                log.info("step %2d loss %.4f gnorm %.3f", s.step, mean / dist.get_world_size(), norm)
            if s.step % c.save_every == 0:
                self.saver.save(s)
        self.saver.wait()
        return s.step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--segment", type=int, default=Config.segment)
    ap.add_argument("--root", default=Config.root)
    a = ap.parse_args()
    cfg = Config(steps=a.steps, segment=a.segment, root=a.root)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    logging.getLogger("torch").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        shutil.rmtree(cfg.root, ignore_errors=True)
    dist.barrier()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    saver = AsyncSaver(cfg.root)
    step = 0
    while step < cfg.steps:
        step = Segment(cfg, mesh, saver).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
