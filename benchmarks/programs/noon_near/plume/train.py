import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F

from loss_scaler import DynamicLossScaler, HalfGradOptimizer
from tensor_parallel import ParallelLM


class MarkovCorpus:
    """Synthetic token stream; every rank of the tensor-parallel group reads the same one."""

    def __init__(self, vocab, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        weights = 1.0 / torch.arange(1, vocab + 1).float()
        self.table = torch.multinomial(weights.expand(vocab, -1), 3, generator=self.g)

    def batch(self, size, length):
        ids = torch.randint(0, self.vocab, (size, length + 1), generator=self.g)
        pick = torch.randint(0, 3, (size, length + 1), generator=self.g)
        for t in range(1, length + 1):
            ids[:, t] = self.table[ids[:, t - 1], pick[:, t]]
        return ids[:, :-1], ids[:, 1:]


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--seq", type=int, default=64)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=3)
    return ap.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = ParallelLM(48, args.dim, 3, 4, args.seq, rank, world, args.seed)
    base = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    optimizer = HalfGradOptimizer(model.parameters(), base, DynamicLossScaler())
    corpus = MarkovCorpus(48, args.seed)

    for step in range(args.steps):
        x, y = corpus.batch(args.batch_size, args.seq)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.backward(loss)
        optimizer.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} scale {optimizer.scaler.scale:.0f}", flush=True)
    if rank == 0:
        print(f"skipped {optimizer.skipped} of {args.steps}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
