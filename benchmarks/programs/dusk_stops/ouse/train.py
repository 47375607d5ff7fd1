"""Causal LM training with the HF Trainer under a wall-clock budget."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator, set_seed

from budget import TimeBudgetCallback
from corpus import load_tokenized

log = logging.getLogger(__name__)


def build_model(vocab, block):
    cfg = GPT2Config(vocab_size=vocab, n_positions=block, n_embd=96, n_layer=2, n_head=4,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default=None)
    ap.add_argument("--max-steps", type=int, default=2000)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--block", type=int, default=64)
    ap.add_argument("--vocab", type=int, default=256)
    ap.add_argument("--documents", type=int, default=3500)
    ap.add_argument("--max-train-seconds", type=float, default=16.0)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    set_seed(42)

    targs = TrainingArguments(
        output_dir=args.out or os.path.join(tempfile.gettempdir(), f"lm-{os.getppid()}"),
        max_steps=args.max_steps, per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=16,
        learning_rate=1e-3, logging_steps=25, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        ddp_backend="gloo", ddp_find_unused_parameters=False, dataloader_num_workers=0, seed=42,
        average_tokens_across_devices=False,
    )
    with targs.main_process_first(desc="tokenize"):
        budget = TimeBudgetCallback(args.max_train_seconds)  # preparation counts as well
        train, valid = load_tokenized(targs.output_dir, args.documents, args.vocab, args.block)

    trainer = Trainer(
        model=build_model(args.vocab, args.block), args=targs, train_dataset=train, eval_dataset=valid,
        data_collator=default_data_collator, callbacks=[budget],
    )
    result = trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        log.info("stopped after %d steps, train loss %.3f, eval loss %.3f",
                 result.global_step, result.training_loss, metrics["eval_loss"])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
