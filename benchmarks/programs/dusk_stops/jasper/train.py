"""Accelerate training with automatic batch size reduction."""
import argparse
import logging
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size, set_seed
from torch.utils.data import DataLoader

from memory import MemoryBudget
from sequences import LengthSortedSequences, pad_collate

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("train")


class Tagger(nn.Module):
    def __init__(self, vocab=300, dim=64, hidden=96, tags=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def run(args, accelerator, dataset, budget):
    @find_executable_batch_size(starting_batch_size=args.batch_size)
    def training(batch_size):
        accelerator.free_memory()
        accelerator.print(f"trying batch size {batch_size}")
        set_seed(args.seed)
        model = Tagger()
        opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
        loader = DataLoader(dataset, batch_size=batch_size, collate_fn=pad_collate)
        model, opt, loader = accelerator.prepare(model, opt, loader)
        step = 0
        for epoch in range(args.epochs):
            for ids, tags in loader:
                with budget.activations(ids, width=192):
                    logits = model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
                step += 1
                if step % 20 == 0:
                    accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
            mean = accelerator.gather(loss.detach().view(1)).mean()
            accelerator.print(f"epoch {epoch} done, last loss {mean.item():.4f}")
        return model, step

    return training()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--sequences", type=int, default=2400)
    p.add_argument("--memory-mb", type=float, default=3.0, help="activation budget of a worker")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    accelerator = Accelerator(cpu=True)
    budget = MemoryBudget(args.memory_mb * 2 ** 20)
    model, steps = run(args, accelerator, LengthSortedSequences(args.sequences), budget)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        out = args.out or tempfile.mkdtemp(prefix="tagger_")
        os.makedirs(out, exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(out, "tagger.pt"))
        log.info("trained %d steps", steps)
    accelerator.end_training()


if __name__ == "__main__":
    main()
