"""Long-context style causal LM training without the Trainer, with accelerate.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler

logger = get_logger(__name__)


class PackedTokens(Dataset):
    """Fixed-length windows over a long synthetic token stream."""

    def __init__(self, num_windows, seq_len, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        phrases = torch.randint(2, vocab, (400, 5), generator=g)
        picks = torch.randint(0, 400, (num_windows * seq_len // 5 + 1,), generator=g)
        self.tokens = phrases[picks].flatten()
        self.seq_len, self.num_windows = seq_len, num_windows

    def __len__(self):
        return self.num_windows

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i * self.seq_len:(i + 1) * self.seq_len]}


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--num_train_epochs", type=int, default=3)
    p.add_argument("--max_train_steps", type=int, default=None)
    p.add_argument("--per_device_train_batch_size", type=int, default=4)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--learning_rate", type=float, default=1e-3)
    p.add_argument("--lr_scheduler_type", default="linear")
    p.add_argument("--num_warmup_steps", type=int, default=8)
    p.add_argument("--num_windows", type=int, default=480)
    p.add_argument("--seq_len", type=int, default=96)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default=None)
    return p.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)

    config = LlamaConfig(vocab_size=512, hidden_size=96, intermediate_size=256, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=args.seq_len)
    model = LlamaForCausalLM(config)
    train_dataset = PackedTokens(args.num_windows, args.seq_len, config.vocab_size, args.seed)
    train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=args.per_device_train_batch_size,
                                  drop_last=True)

    no_decay = ("norm", "bias")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(k in n for k in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.95))
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)

    # the length of the dataloader has changed, so the number of updates is computed now
    num_update_steps_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * num_update_steps_per_epoch
    lr_scheduler = get_scheduler(
        name=args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.num_warmup_steps * accelerator.num_processes,
        num_training_steps=args.max_train_steps * accelerator.num_processes,
    )
    lr_scheduler = accelerator.prepare(lr_scheduler)

    total = args.per_device_train_batch_size * accelerator.num_processes * args.gradient_accumulation_steps
    accelerator.print(f"updates {args.max_train_steps} total batch size {total}")
    completed_steps = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                logits = model(input_ids=batch["input_ids"], use_cache=False).logits
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1
                if completed_steps % 10 == 0:
                    mean = accelerator.reduce(loss.detach(), "mean").item()
                    accelerator.print(f"epoch {epoch} step {completed_steps}/{args.max_train_steps} loss {mean:.4f}")
            if completed_steps >= args.max_train_steps:
                break

    out = args.out or tempfile.mkdtemp()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(out, "pytorch_model.bin"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
