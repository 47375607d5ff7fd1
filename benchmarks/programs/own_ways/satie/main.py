"""Character model in stages: a wide stage with short context, then a long-context stage."""
import argparse
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from cache import TokenCache
from net import CharGru


@dataclass
class Stage:
    name: str
    context: int
    batch: int
    steps: int
    lr: float


STAGES = [Stage("short", 24, 16, 25, 4e-3), Stage("long", 64, 8, 20, 1e-3)]


def synthetic_text(seed=7, sentences=500):
    rng = random.Random(seed)
    who = ["the miller", "a sailor", "my aunt", "the old dog", "her brother"]
    does = ["sings to", "waits for", "follows", "forgets", "paints"]
    whom = ["the river", "a green boat", "the moon", "the last train", "nobody"]
    return " ".join(f"{rng.choice(who)} {rng.choice(does)} {rng.choice(whom)}."
                    for _ in range(sentences))


def windows(tokens, stage, rank, world, seed):
    """Endless batches; every process takes its slice of one common permutation."""
    starts = np.arange(0, len(tokens) - stage.context - 1, stage.context)
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(starts)
        order = order[:len(order) // (world * stage.batch) * world * stage.batch]
        for k in range(0, len(order), world * stage.batch):
            mine = order[k + rank * stage.batch:k + (rank + 1) * stage.batch]
            rows = np.stack([tokens[s:s + stage.context + 1] for s in mine]).astype(np.int64)
            rows = torch.from_numpy(rows)
            yield rows[:, :-1], rows[:, 1:]
        epoch += 1


def run_stage(stage, model, tokens, args, rank, world):
    opt = torch.optim.AdamW(model.parameters(), lr=stage.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, stage.lr, total_steps=stage.steps)
    batches = windows(tokens, stage, rank, world, args.seed)
    avg = None
    for step in range(1, stage.steps + 1):
        x, y = next(batches)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
        if rank == 0 and step % args.log_every == 0:
            print(f"[{stage.name}] step {step:3d} loss {avg:.4f}", flush=True)
    summary = torch.tensor([avg])
    dist.all_reduce(summary)
    return summary.item() / world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--log-every", type=int, default=5)
    ap.add_argument("--cache-dir", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    folder = [args.cache_dir or (tempfile.mkdtemp(prefix="chars_") if rank == 0 else None)]
    dist.broadcast_object_list(folder, src=0)
    text = synthetic_text()
    vocab = sorted(set(text))
    cache = TokenCache(folder[0], rank)

    model = DDP(CharGru(len(vocab)))
    for stage in STAGES:
        tokens = cache.build(text, vocab, stage.name)
        if rank == 0:
            print(f"stage {stage.name}: {len(tokens)} tokens, context {stage.context}", flush=True)
        loss = run_stage(stage, model, tokens, args, rank, world)
        if rank == 0:
            ids = model.module.sample(vocab.index("t"), 30)
            print(f"stage {stage.name} loss {loss:.4f} | {''.join(vocab[i] for i in ids)}",
                  flush=True)
            torch.save(model.module.state_dict(), Path(folder[0]) / f"{stage.name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
