import argparse
import json
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tokens import PairTokenizer, write_stories


class Blocks(Dataset):
    def __init__(self, ids, length):
        n = len(ids) // length
        self.data = torch.tensor(ids[: n * length]).view(n, length)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


class LM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        return F.cross_entropy(self.out(h).flatten(0, 1), ids[:, 1:].flatten())


def prepare(accelerator, folder, args):
    """The main process trains the tokenizer and encodes the text, the others read its file."""
    path = os.path.join(folder, "encoded.json")
    with accelerator.main_process_first():
        if not os.path.exists(path):
            began = time.time()
            text = write_stories(args.stories, args.seed)
            tok = PairTokenizer.learn(text, args.merges)
            pieces = {"vocab": tok.size, "train": tok.encode(text[: len(text) * 9 // 10]),
                      "val": tok.encode(text[len(text) * 9 // 10:])}
            with open(path + ".part", "w") as fh:
                json.dump(pieces, fh)
            os.replace(path + ".part", path)
            accelerator.print(f"tokenizer and encoding took {time.time() - began:.1f}s, {len(pieces['train'])} tokens")
    with open(path) as fh:
        return json.load(fh)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stories", type=int, default=1600)
    ap.add_argument("--merges", type=int, default=80)
    ap.add_argument("--length", type=int, default=32)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--seed", type=int, default=33)
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    torch.set_num_threads(1)
    set_seed(args.seed)
    box = [tempfile.mkdtemp(prefix="ob_") if accelerator.is_main_process else None]
    broadcast_object_list(box)
    enc = prepare(accelerator, box[0], args)

    train = DataLoader(Blocks(enc["train"], args.length), args.batch, shuffle=True, drop_last=True)
    val = DataLoader(Blocks(enc["val"], args.length), args.batch)
    model = LM(enc["vocab"], args.dim)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model, opt, train, val = accelerator.prepare(model, opt, train, val)

    for epoch in range(args.epochs):
        model.train()
        for i, ids in enumerate(train):
            with accelerator.accumulate(model):
                loss = model(ids)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            if i % 50 == 0:
                accelerator.print(f"epoch {epoch} batch {i} loss {loss.item():.3f}")
        model.eval()
        losses = []
        for ids in val:
            with torch.no_grad():
                per_row = model(ids).repeat(len(ids))
            losses.append(accelerator.gather_for_metrics(per_row))
        accelerator.print(f"epoch {epoch} val {torch.cat(losses).mean().item():.4f}")
    norm = sum(float(p.detach().double().norm()) for p in accelerator.unwrap_model(model).parameters())
    print(f"process {accelerator.process_index} weight norm {norm:.9f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
