"""Next-token model for service logs with the Hugging Face Trainer."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from model import LineModel
from stream import LogLines


class Held(Dataset):
    """A few files kept apart for evaluation, materialised in memory."""

    def __init__(self, files, rows_per_file, seed):
        self.rows = list(LogLines(files, rows_per_file, seed=seed, rank=0, world=1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


def hits(eval_pred):
    logits, labels = eval_pred.predictions, eval_pred.label_ids
    guess = logits.argmax(-1)[:, :-1]
    return {"accuracy": float((guess == labels[:, 1:]).mean())}


class Progress(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if state.is_world_process_zero and logs:
            keep = {k: round(v, 5) for k, v in logs.items()
                    if k in ("loss", "eval_loss", "eval_accuracy", "learning_rate", "grad_norm")}
            if keep:
                print(f"step {state.global_step}/{state.max_steps} {keep}", flush=True)


def build_arguments(a, out):
    return TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=a.batch,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=1,
        max_steps=a.steps,
        learning_rate=a.lr,
        weight_decay=0.01,
        warmup_steps=4,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=a.eval_steps,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        seed=a.seed,
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--files", type=int, default=16)
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--eval-steps", type=int, default=12)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=17)
    a = p.parse_args()

    set_seed(a.seed)
    out = os.path.join(tempfile.gettempdir(), "log_lines")
    args = build_arguments(a, out)
    train = LogLines(range(a.files), a.rows, seed=a.seed)
    held = Held(range(a.files, a.files + 4), 16, a.seed)
    if train.rank == 0:
        print(f"{a.files} files with {a.rows} rows, {train.world} processes", flush=True)

    trainer = Trainer(model=LineModel(), args=args, train_dataset=train, eval_dataset=held,
                      data_collator=collate, compute_metrics=hits, callbacks=[Progress()])
    trainer.remove_callback(PrinterCallback)
    result = trainer.train()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"train loss {result.training_loss:.4f} eval {metrics['eval_loss']:.4f} "
              f"accuracy {metrics['eval_accuracy']:.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
