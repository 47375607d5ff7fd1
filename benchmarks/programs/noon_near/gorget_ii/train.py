import argparse
import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig


def make_corpus(vocab, length=200_000, seed=1337):
    g = torch.Generator().manual_seed(seed)
    nxt = torch.randint(0, vocab, (vocab, 4), generator=g)
    pick = torch.randint(0, 4, (length,), generator=g).tolist()
    table, cur, out = nxt.tolist(), 0, []
    for p in pick:
        cur = table[cur][p]
        out.append(cur)
    return torch.tensor(out)


class BatchSource:
    def __init__(self, data, block, batch, seed_offset):
        self.data, self.block, self.batch = data, block, batch
        self.g = torch.Generator().manual_seed(1337 + seed_offset)

    def get(self):
        ix = torch.randint(len(self.data) - self.block - 1, (self.batch,), generator=self.g)
        x = torch.stack([self.data[i:i + self.block] for i in ix.tolist()])
        y = torch.stack([self.data[i + 1:i + 1 + self.block] for i in ix.tolist()])
        return x, y


def lr_at(it, args):
    if it < args.warmup:
        return args.lr * (it + 1) / (args.warmup + 1)
    ratio = (it - args.warmup) / max(1, args.max_iters - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * ratio)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-iters", type=int, default=80)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--train-block", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--warmup", type=int, default=8)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)
    cfg = GPTConfig()
    model = DDP(GPT(cfg), broadcast_buffers=False)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": rest, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95))
    source = BatchSource(make_corpus(cfg.vocab_size), args.train_block, args.batch_size, rank)

    for it in range(args.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(it, args)
        x, y = source.get()
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and it % 10 == 0:
            print(f"iter {it}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
