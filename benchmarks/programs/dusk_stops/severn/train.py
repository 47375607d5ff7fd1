"""Language-model fine-tuning with sharded validation files (DDP, one process per device)."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluation import ShardedEvaluator
from keeper import BestKeeper

log = logging.getLogger("train")


class CharModel(nn.Module):
    def __init__(self, vocab=96, dim=64, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(h)


def synth_corpus(n_tokens, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.randint(0, vocab, (97,), generator=g)
    reps = n_tokens // 97 + 1
    noise = torch.rand(reps * 97, generator=g) < 0.05
    toks = base.repeat(reps)
    toks[noise] = torch.randint(0, vocab, (int(noise.sum()),), generator=g)
    return toks[:n_tokens]


def prepare_validation(root, vocab, files=2):
    """Writes the validation split, one file per source."""
    for i in range(files):
        torch.save(synth_corpus(6000 + 500 * i, vocab, 900 + i), os.path.join(root, f"valid_{i:02d}.pt"))


def train_batches(rank, world, steps, bs, seq, vocab):
    toks = synth_corpus(200_000, vocab, 1)
    g = torch.Generator().manual_seed(1234)
    for _ in range(steps):
        starts = torch.randint(0, len(toks) - seq - 1, (world, bs), generator=g)[rank]
        yield torch.stack([toks[s:s + seq + 1] for s in starts.tolist()])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--eval-every", type=int, default=40)
    p.add_argument("--patience", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--seq-len", type=int, default=40)
    p.add_argument("--vocab", type=int, default=96)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")

    box = [args.out or (tempfile.mkdtemp() if rank == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    root = box[0]
    if rank == 0:
        os.makedirs(root, exist_ok=True)
        prepare_validation(root, args.vocab)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(CharModel(args.vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    evaluator = ShardedEvaluator(root, rank, world, seq_len=args.seq_len)
    keeper = BestKeeper(root, rank)
    stale = 0

    for step, batch in enumerate(train_batches(rank, world, args.steps, args.batch_size, args.seq_len, args.vocab), 1):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % args.eval_every == 0:
            ppl = evaluator.run(model.module)
            stale = 0 if keeper.offer(model.module, ppl, step) else stale + 1
            if rank == 0:
                log.info("step %d valid ppl %.2f", step, ppl)
            if stale >= args.patience:
                break

    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(root, "final.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
