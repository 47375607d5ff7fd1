import argparse
import time

import torch
import torch.distributed as dist

from model import GPT
from parallel import finalize_grads


def get_args():
    p = argparse.ArgumentParser("toy gpt pretraining, one tensor parallel group")
    p.add_argument("--train-iters", type=int, default=60)
    p.add_argument("--micro-batch-size", type=int, default=8)
    p.add_argument("--seq-length", type=int, default=64)
    p.add_argument("--vocab", type=int, default=128)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--eval-interval", type=int, default=20)
    p.add_argument("--seed", type=int, default=1234)
    return p.parse_args()


class Corpus:
    """Noisy arithmetic sequences."""

    def __init__(self, vocab, seq, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab, self.seq = vocab, seq

    def batch(self, b):
        start = torch.randint(self.vocab, (1, b), generator=self.g)
        stride = torch.randint(1, 6, (1, b), generator=self.g)
        t = (start + stride * torch.arange(self.seq + 1).unsqueeze(1)) % self.vocab
        noise = torch.rand(t.shape, generator=self.g) < 0.03
        t = torch.where(noise, torch.randint(self.vocab, t.shape, generator=self.g), t)
        return t[:-1], t[1:]


def main():
    args = get_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = GPT(args.vocab, seq=args.seq_length)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    train, valid = Corpus(args.vocab, args.seq_length, 0), Corpus(args.vocab, args.seq_length, 99)

    t0 = time.time()
    for it in range(1, args.train_iters + 1):
        tokens, labels = train.batch(args.micro_batch_size)
        opt.zero_grad()
        loss = model(tokens, labels)
        loss.backward()
        finalize_grads(model)
        opt.step()
        total = loss.detach().clone()
        if it % 10 == 0:
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"iteration {it}/{args.train_iters} | lm loss {total.item():.4f} | "
                      f"{(time.time() - t0) / it * 1000:.0f} ms/iter", flush=True)
        if it % args.eval_interval == 0:
            model.eval()
            with torch.no_grad():
                v = sum(model(*valid.batch(args.micro_batch_size)) for _ in range(4)) / 4
            dist.all_reduce(v)
            model.train()
            if dist.get_rank() == 0:
                print(f"validation at {it} | lm loss {v.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
