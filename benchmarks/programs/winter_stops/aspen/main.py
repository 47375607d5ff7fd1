"""Character-level language model with fully sharded parameters."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from export import BestWeights, ConsoleLog, ShardedSnapshot
from model import CharLM, shard

log = logging.getLogger("train")


@dataclass
class State:
    model: torch.nn.Module
    step: int = 0
    loss: float = 0.0
    val_loss: float = float("inf")


def synth_corpus(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.softmax(torch.randn(vocab, vocab, generator=g) * 2.5, -1)
    out = torch.empty(n, dtype=torch.long)
    cur = 0
    noise = torch.rand(n, generator=g)
    cdf = table.cumsum(-1)
    for i in range(n):
        cur = int(torch.searchsorted(cdf[cur], noise[i]).clamp(max=vocab - 1))
        out[i] = cur
    return out


def sample(data, batch, context, gen):
    at = torch.randint(0, len(data) - context - 1, (batch,), generator=gen)
    x = torch.stack([data[i : i + context] for i in at])
    y = torch.stack([data[i + 1 : i + context + 1] for i in at])
    return x, y


@torch.no_grad()
def evaluate(model, data, args):
    gen = torch.Generator().manual_seed(99)
    total = torch.zeros(2)
    for _ in range(args.eval_batches):
        x, y = sample(data, args.batch, args.context, gen)
        total += torch.tensor([F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def build_callbacks(args, is_main):
    callbacks = [ShardedSnapshot(args.out, every=50)]
    if is_main:
        callbacks.append(ConsoleLog(every=20))
    callbacks.append(BestWeights(args.out, start_step=args.export_after))
    return callbacks


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--context", type=int, default=32)
    p.add_argument("--vocab", type=int, default=48)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--eval-every", type=int, default=20)
    p.add_argument("--eval-batches", type=int, default=4)
    p.add_argument("--export-after", type=int, default=60)
    p.add_argument("--out", default=f"/tmp/charlm-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(name)s %(message)s")
    os.makedirs(args.out, exist_ok=True)

    corpus = synth_corpus(12_000, args.vocab, seed=7)
    train, val = corpus[:10_000], corpus[10_000:]
    part = train[rank * len(train) // world : (rank + 1) * len(train) // world]

    torch.manual_seed(0)
    model = shard(CharLM(args.vocab, context=args.context), init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    state = State(model)
    callbacks = build_callbacks(args, is_main=rank == 0)
    gen = torch.Generator().manual_seed(100 + rank)
    seen = torch.zeros(1)

    for state.step in range(1, args.steps + 1):
        x, y = sample(part, args.batch, args.context, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        state.loss = loss.item()
        seen += x.numel()
        for cb in callbacks:
            cb.on_step_end(state)
        if state.step % args.eval_every == 0:
            state.val_loss = evaluate(model, val, args)
            for cb in callbacks:
                cb.on_eval_end(state)
            tokens = seen.clone()
            dist.all_reduce(tokens)
            if rank == 0:
                log.info("tokens so far %d", int(tokens))

    if rank == 0:
        log.info("finished, val %.4f", state.val_loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
