import contextlib
import itertools
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import IGNORE, collate


class SFTTrainer:
    def __init__(self, model, args, train_set, eval_set):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(model)
        self.sampler = DistributedSampler(train_set, seed=args.seed, drop_last=True)
        self.loader = DataLoader(train_set, args.micro_batch, sampler=self.sampler, collate_fn=collate, drop_last=True)
        self.eval_loader = DataLoader(eval_set, 16, sampler=DistributedSampler(eval_set, shuffle=False),
                                      collate_fn=collate)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.updates_per_epoch = len(self.loader) // args.accumulate
        self.scheduler = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, 1.0, 0.1, total_iters=self.updates_per_epoch * args.epochs)

    def token_loss(self, batch):
        logits = self.model(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE, reduction="sum")

    def windows(self):
        it = iter(self.loader)
        for _ in range(self.updates_per_epoch):
            yield list(itertools.islice(it, self.args.accumulate))

    def count_items(self, window):
        return sum(int((b["labels"] != IGNORE).sum()) for b in window)

    def update(self, window):
        num_items = torch.tensor(self.count_items(window))
        dist.all_reduce(num_items)
        total = 0.0
        for i, batch in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.token_loss(batch) * self.world / num_items
                loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        acc = torch.zeros(2, dtype=torch.float64)
        for batch in self.eval_loader:
            acc[0] += self.token_loss(batch).item()
            acc[1] += (batch["labels"] != IGNORE).sum().item()
        dist.all_reduce(acc)
        self.model.train()
        return (acc[0] / acc[1]).item()

    def train(self):
        step, start = 0, time.time()
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for window in self.windows():
                loss = self.update(window)
                step += 1
                if self.rank == 0 and step % self.args.log_every == 0:
                    print(json.dumps({"step": step, "loss": round(loss, 4), "lr": self.scheduler.get_last_lr()[0],
                                      "sec": round(time.time() - start, 1)}), flush=True)
            ev = self.evaluate()
            if self.rank == 0:
                print(json.dumps({"epoch": epoch, "eval_loss": round(ev, 4)}), flush=True)
                os.makedirs(self.args.output_dir, exist_ok=True)
                torch.save(self.model.module.state_dict(), os.path.join(self.args.output_dir, f"epoch{epoch}.pt"))
        dist.barrier()
