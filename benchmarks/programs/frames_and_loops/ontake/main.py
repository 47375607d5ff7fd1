import argparse
import contextlib
import json
import os
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset

warnings.filterwarnings("ignore")
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments, set_seed


class Pieces(Dataset):
    """Short integer sequences; the label is the topic they were drawn from."""

    def __init__(self, n, seed, vocab=120, classes=5, length=16):
        g = torch.Generator().manual_seed(77)
        topics = torch.softmax(2 * torch.randn(classes, vocab, generator=g), -1)
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (n,), generator=g)
        self.ids = torch.multinomial(topics[self.labels], length, replacement=True, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class BagEncoder(nn.Module):
    def __init__(self, vocab=120, classes=5, dim=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.att = nn.Linear(dim, 1)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, classes))

    def forward(self, input_ids, labels=None):
        e = self.emb(input_ids)
        logits = self.out((torch.softmax(self.att(e), 1) * e).sum(1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class EmaWeights(TrainerCallback):
    """Average of the weights, kept alike on every process and put in place for evaluation."""

    def __init__(self, decay=0.9):
        self.decay, self.shadow, self.raw = decay, None, None

    def on_train_begin(self, args, state, control, model=None, **kw):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kw):
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def swap(self, model):
        if self.raw is None:
            self.raw = {n: p.detach().clone() for n, p in model.named_parameters()}
            source = self.shadow
        else:
            source, self.raw = self.raw, None
        for n, p in model.named_parameters():
            p.copy_(source[n])


class EmaTrainer(Trainer):
    def __init__(self, *a, ema=None, **k):
        super().__init__(*a, **k)
        self.ema = ema
        self.add_callback(ema)

    @contextlib.contextmanager
    def averaged(self):
        plain = self.accelerator.unwrap_model(self.model)
        self.ema.swap(plain)
        try:
            yield
        finally:
            self.ema.swap(plain)

    def evaluate(self, *a, **k):
        with self.averaged():
            return super().evaluate(*a, **k)

    def _save_checkpoint(self, *a, **k):
        with self.averaged():
            return super()._save_checkpoint(*a, **k)


class JsonLines(TrainerCallback):
    def __init__(self, path):
        self.path = path

    def on_log(self, args, state, control, logs=None, **kw):
        if state.is_world_process_zero:
            with open(self.path, "a") as f:
                f.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


def metrics(pred):
    return {"accuracy": float((np.argmax(pred.predictions, -1) == pred.label_ids).mean())}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=600)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--lr", type=float, default=8e-3)
    p.add_argument("--out", default="out_ontake")
    a = p.parse_args()
    torch.set_num_threads(1)
    set_seed(18)
    os.makedirs(a.out, exist_ok=True)
    args = TrainingArguments(
        output_dir=a.out, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=10,
        gradient_accumulation_steps=2, per_device_eval_batch_size=25, num_train_epochs=a.epochs, learning_rate=a.lr,
        warmup_steps=5, lr_scheduler_type="cosine", eval_strategy="epoch", save_strategy="epoch", save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="accuracy", logging_steps=10, report_to=[], seed=18,
        disable_tqdm=True, dataloader_num_workers=0, ddp_find_unused_parameters=False)
    trainer = EmaTrainer(
        model=BagEncoder(), args=args, train_dataset=Pieces(a.rows, 1), eval_dataset=Pieces(155, 2),
        compute_metrics=metrics, ema=EmaWeights(),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2), JsonLines(os.path.join(a.out, "log.jsonl"))])
    trainer.train()
    if trainer.is_world_process_zero():
        print("best", trainer.state.best_metric, "steps", trainer.state.global_step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
