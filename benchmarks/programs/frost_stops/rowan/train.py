import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from report import ReportAndStop


class Parity(Dataset):
    """Token sequences labelled by the majority of two marker tokens."""

    def __init__(self, n, length=12, vocab=40, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(4, vocab, (n, length), generator=g)
        marks = torch.randint(2, 4, (n, 5), generator=g)
        self.ids[:, :5] = marks
        self.labels = (marks == 3).sum(1).gt(2).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


def build_model():
    cfg = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                     max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=240)
    ap.add_argument("--lr", type=float, default=5e-3)
    opt = ap.parse_args()

    set_seed(3)
    folder = tempfile.mkdtemp(prefix="report_")
    args = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=opt.max_steps,
        learning_rate=opt.lr,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        logging_steps=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=False,
        seed=3,
    )
    trainer = Trainer(
        model=build_model(),
        args=args,
        train_dataset=Parity(1024, seed=1),
        eval_dataset=Parity(256, seed=2),
        callbacks=[ReportAndStop(folder)],
    )
    result = trainer.train()
    scores = trainer.evaluate()
    if trainer.is_world_process_zero():
        print("steps", result.global_step, "eval_loss", round(scores["eval_loss"], 4), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
