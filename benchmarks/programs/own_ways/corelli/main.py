"""Sentence-pair classification with the Hugging Face Trainer, early stopping and best model."""
import argparse
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from transformers import (EarlyStoppingCallback, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

from pairs import PairDataset, collate


class PairNet(nn.Module):
    def __init__(self, vocab=90, width=48, classes=3):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, width, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(4 * width, 96), nn.GELU(), nn.Dropout(0.1),
                                 nn.Linear(96, classes))

    def forward(self, first, second, labels=None):
        a, b = self.emb(first), self.emb(second)
        logits = self.mlp(torch.cat([a, b, (a - b).abs(), a * b], 1))
        out = {"logits": logits}
        if labels is not None:
            out = {"loss": F.cross_entropy(logits, labels), "logits": logits}
        return out


class Console(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs:
            short = {k: round(float(v), 4) for k, v in logs.items()
                     if k in ("loss", "eval_loss", "eval_accuracy", "eval_n")}
            if short:
                print(f"step {state.global_step}: {short}", flush=True)

    def on_train_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"stopped at step {state.global_step}, best {state.best_metric:.4f}", flush=True)


def scores(prediction):
    guess = prediction.predictions.argmax(-1)
    return {"accuracy": float(np.mean(guess == prediction.label_ids)), "n": len(guess)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=8e-3)
    p.add_argument("--patience", type=int, default=2)
    p.add_argument("--seed", type=int, default=29)
    a = p.parse_args()
    set_seed(a.seed)
    train, valid = PairDataset(640, seed=1), PairDataset(150, seed=2)

    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="pairs_"),
        per_device_train_batch_size=a.batch,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=a.accum,
        num_train_epochs=a.epochs,
        learning_rate=a.lr,
        lr_scheduler_type="linear",
        warmup_steps=5,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="epoch",
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        load_best_model_at_end=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        seed=a.seed,
        data_seed=a.seed,
    )
    trainer = Trainer(model=PairNet(), args=args, train_dataset=train, eval_dataset=valid,
                      data_collator=collate, compute_metrics=scores,
                      callbacks=[EarlyStoppingCallback(a.patience), Console()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    final = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"final accuracy {final['eval_accuracy']:.4f} on {final['eval_n']} pairs", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
