import argparse

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from callbacks import TargetLossCallback


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 50, (n, 12), generator=g)
        self.y = (self.ids < 25).float().mean(1).gt(0.5).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.y[i]}


class BagClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.emb(input_ids).mean(1))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", type=float, default=0.35)
    ap.add_argument("--output_dir", default="runs/reviews")
    a = ap.parse_args()
    set_seed(3)
    targs = TrainingArguments(
        output_dir=a.output_dir, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=16,
        per_device_eval_batch_size=16, num_train_epochs=8, learning_rate=2e-2, logging_steps=5,
        save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        lr_scheduler_type="constant",
    )
    trainer = Trainer(
        model=BagClassifier(), args=targs, train_dataset=Reviews(512, 0), eval_dataset=Reviews(128, 1),
        callbacks=[TargetLossCallback(a.target)],
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
