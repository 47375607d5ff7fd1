"""FSDP2 pretraining in two phases: short context, then long context from the phase-1 checkpoint."""
import argparse
import logging
import shutil
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from checkpoint import CheckpointManager
from model import Transformer

logger = logging.getLogger("pretrain")


@dataclass
class Phase:
    name: str
    until: int
    seq_len: int
    batch: int
    rope_base: float


class Stream:
    """Deterministic by (step, rank): position in the stream is the step itself."""

    def __init__(self, vocab, rank):
        gen = torch.Generator().manual_seed(3)
        self.vocab, self.rank = vocab, rank
        self.table = torch.randint(0, vocab, (vocab, 3), generator=gen)

    def get(self, step, batch, seq_len):
        gen = torch.Generator().manual_seed(step * 1009 + self.rank)
        out = torch.randint(0, self.vocab, (batch, seq_len + 1), generator=gen)
        pick = torch.randint(0, 3, (batch, seq_len), generator=gen)
        for t in range(seq_len):
            out[:, t + 1] = self.table[out[:, t], pick[:, t]]
        return out[:, :-1], out[:, 1:]


def build(args, phase, mesh):
    torch.manual_seed(args.seed)
    model = Transformer(args.vocab, rope_base=phase.rope_base)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=mp)
    fully_shard(model, mesh=mesh, mp_policy=mp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.1)
    return model, optimizer


def lr_at(step, args):
    warm = min(1.0, (step + 1) / args.warmup)
    decay = max(0.1, 1.0 - max(0, step - args.decay_from) / args.decay_steps)
    return args.lr * warm * decay


def run_phase(args, phase, start, folder, mesh, stream):
    model, optimizer = build(args, phase, mesh)
    ckpt = CheckpointManager(folder, model, optimizer)
    step = 0
    if start:
        info = ckpt.load(start, tokens=0)
        step = info["step"]
        logger.info("phase %s: resumed at step %d (%d tokens)", phase.name, step, info["tokens"])
    tokens = info["tokens"] if start else 0
    t0 = time.time()
    while step < phase.until:
        for g in optimizer.param_groups:
            g["lr"] = lr_at(step, args)
        x, y = stream.get(step, phase.batch, phase.seq_len)
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        tokens += x.numel() * dist.get_world_size()
        if step % 10 == 0 or step in (start + 1, start + 3, start + 5):
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            logger.info("%s step %d loss %.4f gnorm %.3f lr %.2e (%.1fs)", phase.name, step,
                        mean.item() / dist.get_world_size(), norm.full_tensor().item(),
                        optimizer.param_groups[0]["lr"], time.time() - t0)
    ckpt.save(step, tokens=tokens)
    return step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=128)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--decay-from", type=int, default=80)
    ap.add_argument("--decay-steps", type=int, default=80)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    box = [args.out or tempfile.mkdtemp(prefix="pretrain-")]
    dist.broadcast_object_list(box)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    stream = Stream(args.vocab, rank)

    phases = [Phase("short", 80, 32, 8, 10000.0), Phase("long", 130, 64, 4, 10000.0)]
    done = 0
    for phase in phases:
        done = run_phase(args, phase, done, box[0], mesh, stream)
    dist.barrier()
    if rank == 0 and args.out is None:
        shutil.rmtree(box[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
