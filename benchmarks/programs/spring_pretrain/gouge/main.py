"""Distil a small decoder into a smaller one with the HF Trainer."""
import argparse
import logging
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, default_data_collator, set_seed

from distill import DistillTrainer


class PackedText(Dataset):
    """Fixed-size packed blocks, every position is a label."""

    def __init__(self, blocks, seq_len, vocab, seed):
        gen = torch.Generator().manual_seed(seed)
        table = torch.randint(0, vocab, (vocab, 2), generator=torch.Generator().manual_seed(1))
        data = torch.randint(0, vocab, (blocks, seq_len), generator=gen)
        pick = torch.randint(0, 2, (blocks, seq_len), generator=gen)
        for t in range(1, seq_len):
            data[:, t] = table[data[:, t - 1], pick[:, t]]
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        ids = self.data[i]
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def decoder(vocab, hidden, layers, seed):
    set_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128, use_cache=False))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=96)
    p.add_argument("--seq-len", type=int, default=24)
    p.add_argument("--max-steps", type=int, default=60)
    p.add_argument("--grad-accum", type=int, default=8)
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--out", default=None)
    args = p.parse_args()
    out = args.out or os.path.join(tempfile.gettempdir(), f"distill-{os.getppid()}")
    logging.basicConfig(level=logging.WARNING)

    train = PackedText(2048, args.seq_len, args.vocab, seed=11)
    teacher = decoder(args.vocab, 64, 2, seed=3)
    student = decoder(args.vocab, 48, 1, seed=4)
    targs = TrainingArguments(
        output_dir=out, use_cpu=True, ddp_backend="gloo", max_steps=args.max_steps,
        per_device_train_batch_size=4, gradient_accumulation_steps=args.grad_accum,
        learning_rate=args.lr, lr_scheduler_type="cosine", warmup_steps=5, optim="sgd",
        optim_args="momentum=0.9", max_grad_norm=0.0, logging_steps=10, save_strategy="no",
        report_to=[], disable_tqdm=True, seed=0, dataloader_num_workers=0, ddp_find_unused_parameters=False)
    trainer = DistillTrainer(model=student, args=targs, train_dataset=train,
                             data_collator=default_data_collator, teacher=teacher, alpha=0.7)
    result = trainer.train()
    if trainer.is_world_process_zero():
        print("final", result.metrics, flush=True)
    trainer.save_model(out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
