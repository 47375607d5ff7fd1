import argparse
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from modeling import CausalLM, Tokenizer

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "likes", "hears", "old", "small", "green", "tree", "house"]


class Dialogues(Dataset):
    def __init__(self, tok, n=320, seed=0):
        r = random.Random(seed)
        self.rows = []
        for _ in range(n):
            s = f"the {r.choice(WORDS[8:11])} {r.choice(WORDS[2:5])} {r.choice(WORDS[5:8])} a {r.choice(WORDS[11:])}"
            self.rows.append(torch.tensor(tok(f"<user> {s} <bot> {s} <end>")))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def configure(model, args):
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=args.lr)
    return opt, torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.2, total_iters=30)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--weight-decay", type=float, default=0.01)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    set_seed(29)
    tokenizer = Tokenizer(WORDS)
    model = CausalLM(vocab=len(tokenizer))
    tokenizer.add_special_tokens(["<user>", "<bot>", "<end>"])
    model.resize_token_embeddings(len(tokenizer))
    optimizer, scheduler = configure(model, args)
    model = DDP(model)
    ds = Dialogues(tokenizer)
    sampler = DistributedSampler(ds, seed=1)
    loader = DataLoader(ds, batch_size=args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids in loader:
            loss = model(ids, labels=ids)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
