import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist

from data import BatchSource, build_corpus
from model import TinyLM
from muon import DistMuon

log = logging.getLogger("lm")


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--global-batch", type=int, default=24)
    ap.add_argument("--seq-len", type=int, default=64)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--vocab", type=int, default=48)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=3e-3)
    ap.add_argument("--out", default=None)
    return ap.parse_args()


def average_(params, world):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    for p, chunk in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(chunk.view_as(p))


def gather_muon_state(model, muon, rank):
    """Momentum lives with the owners; collect it so that one file holds all of it."""
    names = {p: n for n, p in model.named_parameters()}
    local = {names[p]: s["momentum"] for p, s in muon.state.items()}
    parts = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(local, parts, dst=0)
    if rank != 0:
        return None
    merged = {}
    for part in parts:
        merged.update(part)
    return merged


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(1234)

    corpus = build_corpus(args.vocab, 60_000)
    source = BatchSource(corpus, args.seq_len, args.global_batch, rank, world, seed=5)
    model = TinyLM(args.vocab, args.dim, args.depth, 4, args.seq_len)
    matrices = [p for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2]
    others = [p for n, p in model.named_parameters() if not (n.startswith("blocks.") and p.ndim == 2)]
    muon = DistMuon(matrices, lr=args.muon_lr)
    adam = torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)

    for step in range(args.steps):
        frac = max(0.0, (step - 0.6 * args.steps) / (0.4 * args.steps))
        for opt, lr in ((muon, args.muon_lr), (adam, args.adam_lr)):
            opt.param_groups[0]["lr"] = lr * (1 - 0.9 * frac)
        x, y = source.next()
        loss = model(x, y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        average_(others, world)
        adam.step()
        muon.step()
        if step % 15 == 0 or step == args.steps - 1:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            log.info("step %d loss %.5f", step, shown.item() / world)

    state = gather_muon_state(model, muon, rank)
    if rank == 0:
        out = args.out or tempfile.mkdtemp(prefix="lm-")
        os.makedirs(out, exist_ok=True)
        torch.save({"model": model.state_dict(), "muon": state, "adam": adam.state_dict()}, os.path.join(out, "last.pt"))
        log.info("saved %d momentum buffers, weight norm %.6f", len(state),
                 torch.stack([p.detach().norm() for p in model.parameters()]).norm())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
