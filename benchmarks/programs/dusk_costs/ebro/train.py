"""Character-level GPT on generated text, DDP."""
import argparse
import logging
import math
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT

log = logging.getLogger("gpt")


def make_corpus(n, vocab):
    """Periodic text with noise, so that there is something to learn."""
    g = torch.Generator().manual_seed(4)
    word = torch.randint(0, vocab, (97,), generator=g)
    text = word.repeat(n // 97 + 1)[:n].clone()
    noise = torch.rand(n, generator=g) < 0.05
    text[noise] = torch.randint(0, vocab, (int(noise.sum()),), generator=g)
    return text


def get_batch(data, batch, length, gen):
    ix = torch.randint(len(data) - length - 1, (batch,), generator=gen)
    x = torch.stack([data[i:i + length] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + length] for i in ix])
    return x, y


def lr_at(it, args):
    if it < args.warmup:
        return args.lr * (it + 1) / args.warmup
    t = (it - args.warmup) / max(1, args.max_iters - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * t)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-iters", type=int, default=80)
    ap.add_argument("--warmup", type=int, default=10)
    ap.add_argument("--batch-size", type=int, default=2)
    ap.add_argument("--seq-len", type=int, default=128)
    ap.add_argument("--block-size", type=int, default=1536)
    ap.add_argument("--vocab-size", type=int, default=96)
    ap.add_argument("--n-layer", type=int, default=6)
    ap.add_argument("--n-head", type=int, default=4)
    ap.add_argument("--n-embd", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1337)
    data = make_corpus(200_000, args.vocab_size)
    model = DDP(GPT(args), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    gen = torch.Generator().manual_seed(1337 + rank)

    t0 = time.perf_counter()
    for it in range(args.max_iters):
        for group in opt.param_groups:
            group["lr"] = lr_at(it, args)
        loss = model(*get_batch(data, args.batch_size, args.seq_len, gen))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if rank == 0 and (it + 1) % 20 == 0:
            dt = (time.perf_counter() - t0) / 20
            log.info("iter %d loss %.4f %.0f ms/iter", it + 1, loss.item(), dt * 1e3)
            t0 = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
