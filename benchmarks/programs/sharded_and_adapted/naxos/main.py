"""Small causal language model, tensor parallel with sequence-parallel residual stream."""
import argparse
import json
import logging
import os

import torch
import torch.distributed as dist

from model import GPT, GPTConfig
from parallel import mark_sequence_parallel, reduce_sequence_parallel_grads, tp_rank

log = logging.getLogger("pretrain")


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=6)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=17)
    ap.add_argument("--out", default="runs/naxos")
    return ap.parse_args()


class MarkovText:
    """Second-order synthetic text; every tensor parallel rank reads the same stream."""

    def __init__(self, vocab, length, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randint(0, vocab, (vocab, 3), generator=g)
        seq = [int(torch.randint(0, vocab, (1,), generator=g))]
        picks = torch.randint(0, 3, (length,), generator=g).tolist()
        rows = table.tolist()
        for p in picks:
            seq.append(rows[seq[-1]][p])
        self.data = torch.tensor(seq)

    def batch(self, n, block, generator):
        starts = torch.randint(0, len(self.data) - block - 1, (n,), generator=generator)
        x = torch.stack([self.data[s:s + block] for s in starts])
        y = torch.stack([self.data[s + 1:s + block + 1] for s in starts])
        return x, y


def clip_gradients(model, max_norm):
    shared = torch.zeros(())
    split = torch.zeros(())
    for name, p in model.named_parameters():
        sq = p.grad.pow(2).sum()
        if name.endswith(("qkv.weight", "proj.weight", "up.weight", "down.weight")):
            split += sq
        else:
            shared += sq
    dist.all_reduce(split)
    if dist.get_world_size() > 1:
        dist.broadcast(shared, src=0)
    norm = (shared + split).sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)
    return norm.item()


def total_loss(loss):
    value = loss.detach().clone()
    dist.all_reduce(value)
    return value.item()


@torch.no_grad()
def evaluate(model, text, cfg, batches=4):
    model.eval()
    g = torch.Generator().manual_seed(999)
    values = [total_loss(model(*text.batch(16, cfg.block, g))) for _ in range(batches)]
    model.train()
    return sum(values) / len(values)


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if tp_rank() == 0 else logging.WARNING,
                        format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    cfg = GPTConfig()
    model = GPT(cfg)
    mark_sequence_parallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    text = MarkovText(cfg.vocab, 20000, seed=3)
    generator = torch.Generator().manual_seed(args.seed + 1)

    history = []
    for step in range(args.steps):
        ids, targets = text.batch(args.batch, cfg.block, generator)
        loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        reduce_sequence_parallel_grads(model)
        norm = clip_gradients(model, args.clip)
        optimizer.step()
        schedule.step()
        value = total_loss(loss)
        history.append(value)
        if step % 10 == 0:
            log.info("step %d loss %.4f grad norm %.3f lr %.2e", step, value, norm, schedule.get_last_lr()[0])
    final = evaluate(model, text, cfg)
    log.info("validation loss %.4f", final)

    os.makedirs(args.out, exist_ok=True)
    torch.save({"tp_rank": tp_rank(), "model": model.state_dict()}, os.path.join(args.out, f"tp{tp_rank()}.pt"))
    if tp_rank() == 0:
        with open(os.path.join(args.out, "history.json"), "w") as fh:
            json.dump({"train": history, "valid": final}, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
