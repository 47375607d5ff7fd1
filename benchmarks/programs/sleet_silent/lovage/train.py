"""Fine-tunes a small encoder for sentence pair scoring with Accelerate."""
import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup


class Pairs(Dataset):
    def __init__(self, n, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.randint(5, vocab, (n, 12), generator=g)
        keep = torch.rand(n, 1, generator=g)
        noise = torch.randint(5, vocab, (n, 12), generator=g)
        same = torch.rand(n, 12, generator=g) < keep
        self.b = torch.where(same, self.a, noise)
        self.score = same.float().mean(1)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        sep = torch.tensor([2])
        ids = torch.cat([torch.tensor([1]), self.a[i], sep, self.b[i], sep])
        types = torch.cat([torch.zeros(14, dtype=torch.long), torch.ones(13, dtype=torch.long)])
        return {"input_ids": ids, "token_type_ids": types, "score": self.score[i]}


class PairScorer(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        cfg = BertConfig(vocab_size=vocab, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, max_position_embeddings=32)
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.reg = nn.Linear(128, 1)

    def forward(self, input_ids, token_type_ids):
        h = self.bert(input_ids=input_ids, token_type_ids=token_type_ids).last_hidden_state
        return self.reg(h.mean(1)).squeeze(-1)


def evaluate(accelerator, model, loader):
    model.eval()
    errs = []
    for batch in loader:
        with torch.no_grad():
            out = model(batch["input_ids"], batch["token_type_ids"])
        errs.append(accelerator.gather_for_metrics((out - batch["score"]).abs()))
    model.train()
    return torch.cat(errs).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocab", type=int, default=2000)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    torch.set_num_threads(1)
    set_seed(21)
    train = DataLoader(Pairs(512, args.vocab, 0), batch_size=args.micro_batch, shuffle=True, drop_last=True)
    valid = DataLoader(Pairs(64, args.vocab, 1), batch_size=16)
    model = PairScorer(args.vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)
    updates = args.epochs * len(train) // args.accumulate
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, updates)

    done = 0
    model.train()
    for epoch in range(args.epochs):
        for i, batch in enumerate(train):
            pred = model(batch["input_ids"], batch["token_type_ids"])
            loss = F.mse_loss(pred, batch["score"])
            accelerator.backward(loss)
            if (i + 1) % args.accumulate == 0:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                done += 1
                accelerator.print(f"update {done}/{updates} loss {loss.item():.4f}", flush=True)
        accelerator.print(f"epoch {epoch} mae {evaluate(accelerator, model, valid):.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
