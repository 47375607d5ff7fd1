"""Causal LM fine-tuning with the Hugging Face Trainer and token accuracy on a held-out split."""
import argparse
import logging
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

log = logging.getLogger("clm")


class MarkovText(Dataset):
    """Sequences from a sparse Markov chain over the whole vocabulary."""

    def __init__(self, n, length, vocab, seed):
        chain = np.random.default_rng(0).integers(0, vocab, (vocab, 2))
        rng = np.random.default_rng(seed)
        ids = np.empty((n, length), dtype=np.int64)
        ids[:, 0] = rng.integers(0, vocab, n)
        for t in range(1, length):
            ids[:, t] = chain[ids[:, t - 1], (rng.random(n) < 0.1).astype(int)]
        self.ids = torch.from_numpy(ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i].clone()}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = logits.argmax(-1)[:, :-1]
    labels = labels[:, 1:]
    mask = labels != -100
    return {"token_accuracy": float((preds == labels)[mask].mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=4000)
    ap.add_argument("--length", type=int, default=48)
    ap.add_argument("--train-size", type=int, default=384)
    ap.add_argument("--eval-size", type=int, default=256)
    ap.add_argument("--embd", type=int, default=96)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    set_seed(3)

    config = GPT2Config(vocab_size=args.vocab, n_positions=args.length, n_embd=args.embd,
                        n_layer=args.layers, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    targs = TrainingArguments(
        output_dir=args.out or tempfile.mkdtemp(), use_cpu=True, num_train_epochs=args.epochs,
        per_device_train_batch_size=4, per_device_eval_batch_size=8, learning_rate=2e-3,
        eval_strategy="steps", eval_steps=24, save_strategy="no", logging_steps=20, report_to=[],
        disable_tqdm=True, ddp_find_unused_parameters=False)
    trainer = Trainer(model=model, args=targs,
                      train_dataset=MarkovText(args.train_size, args.length, args.vocab, 1),
                      eval_dataset=MarkovText(args.eval_size, args.length, args.vocab, 2),
                      compute_metrics=compute_metrics)
    trainer.train()
    if trainer.is_world_process_zero():
        scores = [e["eval_token_accuracy"] for e in trainer.state.log_history if "eval_token_accuracy" in e]
        log.info("token accuracy by evaluation %s", [round(s, 4) for s in scores])


if __name__ == "__main__":
    main()
