import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

OUT = "runs_vetch"


class Counting(Dataset):
    def __init__(self, n, seed, length=24, vocab=64):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        self.ids = (start + torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def reduce_logits(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(-1)


def metrics(pred):
    guess, labels = pred.predictions[:, :-1], pred.label_ids[:, 1:]
    return {"accuracy": float(np.mean(guess == labels))}


def make_trainer(max_steps):
    set_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir=OUT, max_steps=max_steps, per_device_train_batch_size=8, per_device_eval_batch_size=16,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=20, save_strategy="steps", save_steps=20,
        save_total_limit=2, logging_steps=20, learning_rate=2e-3, warmup_steps=5, report_to=[], use_cpu=True,
        ddp_backend="gloo", disable_tqdm=True, eval_accumulation_steps=4,
    )
    return Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Counting(1024, 1), eval_dataset=Counting(101, 2),
                   compute_metrics=metrics, preprocess_logits_for_metrics=reduce_logits)


def main():
    first = make_trainer(40)
    first.train()
    first.accelerator.wait_for_everyone()
    last = get_last_checkpoint(OUT)
    if first.is_world_process_zero():
        print("resuming from", os.path.basename(last), flush=True)
    second = make_trainer(80)
    second.train(resume_from_checkpoint=last)
    result = second.evaluate()
    if second.is_world_process_zero():
        print({k: round(v, 3) for k, v in result.items() if "loss" in k or "acc" in k})


if __name__ == "__main__":
    main()
