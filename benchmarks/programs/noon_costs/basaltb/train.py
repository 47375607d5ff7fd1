import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from model import TinyLM
from trainer import LMTrainer


class MarkovText(Dataset):
    def __init__(self, n, block, vocab, seed):
        g = torch.Generator().manual_seed(99)
        table = torch.randint(0, vocab, (vocab, 4), generator=g)
        g = torch.Generator().manual_seed(seed)
        rows = [torch.randint(0, vocab, (n,), generator=g)]
        for _ in range(block):
            pick = torch.randint(0, 4, (n,), generator=g)
            rows.append(table[rows[-1], pick])
        self.ids = torch.stack(rows, dim=1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--vocab", type=int, default=1024)
    ap.add_argument("--block", type=int, default=48)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--eval-steps", type=int, default=10)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    train_set = MarkovText(960, args.block, args.vocab, seed=1)
    eval_set = MarkovText(192, args.block, args.vocab, seed=2)
    train_loader = DataLoader(train_set, args.batch_size, sampler=DistributedSampler(train_set), drop_last=True)
    eval_loader = DataLoader(eval_set, 32, sampler=DistributedSampler(eval_set, shuffle=False))

    model = DDP(TinyLM(args.vocab, block=args.block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    LMTrainer(model, optimizer, train_loader, eval_loader, args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
