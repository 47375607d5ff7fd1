"""Accelerate loop: accumulation, an uneven evaluation set, a trigger any process may pull, resumable state."""
import argparse
import os
import shutil

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Routes(Dataset):
    """Strings of moves on a grid; the class is the quadrant where the walk ends (or the axis)."""

    def __init__(self, n, seed, length=20):
        g = torch.Generator().manual_seed(seed)
        self.moves = torch.randint(1, 5, (n, length), generator=g)
        lens = torch.randint(6, length + 1, (n,), generator=g)
        self.moves[torch.arange(length)[None] >= lens[:, None]] = 0
        dx = (self.moves == 1).sum(1) - (self.moves == 2).sum(1)
        dy = (self.moves == 3).sum(1) - (self.moves == 4).sum(1)
        self.label = torch.where((dx == 0) | (dy == 0), 0, 1 + (dx > 0).long() * 2 + (dy > 0).long())

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {"moves": self.moves[i], "label": self.label[i]}


class Walker(nn.Module):
    def __init__(self, dim=48, classes=5):
        super().__init__()
        self.emb = nn.Embedding(5, dim, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Dropout(0.05), nn.Linear(96, classes))

    def forward(self, moves):
        return self.head(self.emb(moves).sum(1) / 4)


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    preds, labels = [], []
    for batch in loader:
        p, l = accelerator.gather_for_metrics((model(batch["moves"]).argmax(-1), batch["label"]))
        preds.append(p)
        labels.append(l)
    model.train()
    preds, labels = torch.cat(preds), torch.cat(labels)
    return (preds == labels).float().mean().item(), len(labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--lr", type=float, default=8e-3)
    ap.add_argument("--target", type=float, default=0.28)
    ap.add_argument("--seed", type=int, default=36)
    ap.add_argument("--out", default="runs/zaatar")
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(args.seed)
    train_set, held_set = Routes(2000, 1), Routes(317, 2)
    train = DataLoader(train_set, batch_size=args.batch, shuffle=True)
    held = DataLoader(held_set, batch_size=32)
    model = Walker()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, train, held = accelerator.prepare(model, opt, train, held)
    steps = args.epochs * (len(train) // args.accumulate)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt.optimizer, args.lr, total_steps=steps + 1)
    accelerator.register_for_checkpointing(sched)
    set_seed(args.seed + 1, device_specific=True)
    resume_at = args.epochs // 2

    done, updates = False, 0
    for epoch in range(args.epochs):
        losses = []
        for batch in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(batch["moves"]), batch["label"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                sched.step()
                updates += 1
            losses.append(loss.detach())
        local = torch.stack(losses)
        mean = accelerator.gather(local).mean().item()
        acc, count = evaluate(accelerator, model, held)
        accelerator.print(f"epoch {epoch} loss {mean:.4f} accuracy {acc:.3f} of {count} updates {updates}")
        if local[-20:].mean().item() < args.target:
            accelerator.set_trigger()
        done = accelerator.check_trigger()
        if epoch == resume_at:
            state = os.path.join(args.out, "state")
            if accelerator.is_main_process:
                shutil.rmtree(state, ignore_errors=True)
            accelerator.wait_for_everyone()
            accelerator.save_state(state)
            accelerator.wait_for_everyone()
        if done:
            accelerator.print(f"stopping after epoch {epoch}: a process reached the target loss")
            break

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, "walker.pt"))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
