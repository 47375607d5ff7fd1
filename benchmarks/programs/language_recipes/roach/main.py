"""Pipeline-parallel language model with tied input/output embeddings.

    torchrun --nproc-per-node 3 roach/main.py
"""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from pipe import GPipe, PipeTopology
from stages import Stage, StageConfig


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--micro-batch", type=int, default=2)
    p.add_argument("--num-micro", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--log-every", type=int, default=5)
    p.add_argument("--save", default="roach_stage{}.pt")
    return p.parse_args()


def make_tokens(gen, n, length, vocab):
    start = torch.randint(0, vocab, (n, 1), generator=gen)
    stride = torch.randint(1, 5, (n, 1), generator=gen)
    return (start + stride * torch.arange(length + 1)) % vocab


def lm_loss(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def sync_tied_embeddings(topo, stage):
    if topo.embedding_group is not None:
        dist.all_reduce(stage.table.weight.grad, group=topo.embedding_group)


def clip_by_global_norm(topo, stage, max_norm):
    sq = torch.zeros(())
    for name, p in stage.named_parameters():
        if topo.is_last and topo.size > 1 and name == "table.weight":
            continue
        sq += p.grad.pow(2).sum()
    dist.all_reduce(sq)
    norm = sq.sqrt()
    scale = min(1.0, max_norm / (norm.item() + 1e-6))
    for p in stage.parameters():
        p.grad.mul_(scale)
    return norm.item()


def main():
    args = get_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    topo = PipeTopology()
    topo.init_groups()
    cfg = StageConfig()
    stage = Stage(cfg, topo.rank, topo.size, args.seed)
    n_params = sum(p.numel() for p in stage.parameters())
    counts = [None] * topo.size
    dist.all_gather_object(counts, n_params, group=topo.control_group)
    if topo.is_first:
        logging.info("parameters per stage: %s", counts)

    gpipe = GPipe(topo, stage, (args.micro_batch, cfg.seq, cfg.dim), args.num_micro, lm_loss)
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    gen = torch.Generator().manual_seed(args.seed)
    t0 = time.perf_counter()
    for step in range(args.steps):
        tokens = make_tokens(gen, args.micro_batch * args.num_micro, cfg.seq, cfg.vocab)
        loss = gpipe.step(tokens)
        sync_tied_embeddings(topo, stage)
        norm = clip_by_global_norm(topo, stage, args.clip)
        opt.step()
        opt.zero_grad()
        if topo.is_last and (step % args.log_every == 0 or step == args.steps - 1):
            rate = (step + 1) * tokens[:, 1:].numel() / (time.perf_counter() - t0)
            logging.info("step %3d loss %.4f gnorm %.3f %.0f tok/s", step, loss, norm, rate)

    torch.save(stage.state_dict(), args.save.format(topo.rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
