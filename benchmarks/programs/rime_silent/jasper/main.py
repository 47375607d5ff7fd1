import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from data import Instructions
from trainer import SFTTrainer


class LM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, 1, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--micro-batch", type=int, default=2)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--train-size", type=int, default=640)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--max-norm", type=float, default=5.0)
    p.add_argument("--seed", type=int, default=17)
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--output-dir", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "sft"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    SFTTrainer(LM(200, 96), args, Instructions(args.train_size, seed=1), Instructions(128, seed=2)).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
