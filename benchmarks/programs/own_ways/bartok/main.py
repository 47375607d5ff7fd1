"""Sequence reversal with Accelerate: accumulation, warmup, linear decay, checkpointing."""
import argparse
import logging
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from data import Pairs
from net import Reverser

logger = logging.getLogger("reverser")


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--num_train_epochs", type=int, default=3)
    p.add_argument("--per_device_batch_size", type=int, default=16)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--learning_rate", type=float, default=2e-3)
    p.add_argument("--warmup_ratio", type=float, default=0.1)
    p.add_argument("--weight_decay", type=float, default=0.01)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--output_dir", default=None)
    return p.parse_args()


def linear_schedule(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (total - step) / max(1, total - warmup))
    return LambdaLR(optimizer, factor)


def parameter_groups(model, weight_decay):
    skip = {n for n, p in model.named_parameters() if p.ndim < 2 or n == "pos"}
    return [
        {"params": [p for n, p in model.named_parameters() if n not in skip],
         "weight_decay": weight_decay},
        {"params": [p for n, p in model.named_parameters() if n in skip], "weight_decay": 0.0},
    ]


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    losses, hits = [], []
    for src, tgt in loader:
        logits = model(src)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), reduction="none")
        loss = loss.view(tgt.shape).mean(1)
        exact = (logits.argmax(-1) == tgt).float().mean(1)
        loss, exact = accelerator.gather_for_metrics((loss, exact))
        losses.append(loss)
        hits.append(exact)
    model.train()
    return torch.cat(losses).mean().item(), torch.cat(hits).mean().item()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True,
                              gradient_accumulation_steps=args.gradient_accumulation_steps)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S",
                        level=logging.INFO if accelerator.is_main_process else logging.ERROR)
    set_seed(args.seed)

    train_loader = DataLoader(Pairs(1024, seed=1), batch_size=args.per_device_batch_size,
                              shuffle=True, drop_last=True)
    eval_loader = DataLoader(Pairs(200, seed=2), batch_size=32)
    model = Reverser()
    optimizer = torch.optim.AdamW(parameter_groups(model, args.weight_decay),
                                  lr=args.learning_rate, betas=(0.9, 0.98))
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader)

    updates_per_epoch = math.ceil(len(train_loader) / args.gradient_accumulation_steps)
    max_train_steps = args.num_train_epochs * updates_per_epoch
    n = accelerator.num_processes
    scheduler = accelerator.prepare(
        linear_schedule(optimizer, int(args.warmup_ratio * max_train_steps) * n,
                        max_train_steps * n))

    total = args.per_device_batch_size * accelerator.num_processes * \
        args.gradient_accumulation_steps
    logger.info("examples %d, epochs %d, total batch %d, optimization steps %d",
                len(train_loader.dataset), args.num_train_epochs, total, max_train_steps)

    done = 0
    for epoch in range(args.num_train_epochs):
        running = 0.0
        for batch, (src, tgt) in enumerate(train_loader):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(src).flatten(0, 1), tgt.flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.item()
            if accelerator.sync_gradients:
                done += 1
                if done % 8 == 0:
                    logger.info("step %d/%d loss %.4f lr %.3e", done, max_train_steps,
                                running / (batch + 1), scheduler.get_last_lr()[0])
        loss, acc = evaluate(accelerator, model, eval_loader)
        logger.info("epoch %d eval loss %.4f token accuracy %.4f", epoch, loss, acc)

    out = args.output_dir or os.path.join(tempfile.gettempdir(), "reverser")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.makedirs(out, exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(out, "final.pt"))
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
