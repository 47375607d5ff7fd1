import logging
import os
import sys
import tempfile
from dataclasses import dataclass, field

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    train_rows: int = field(default=1024)
    eval_rows: int = field(default=256)
    min_length: int = field(default=6)
    max_length: int = field(default=24)


@dataclass
class ModelArguments:
    vocab_size: int = field(default=64)
    hidden_size: int = field(default=48)
    num_labels: int = field(default=4)


class TagRows(Dataset):
    """The label is the residue of the number of marker tokens."""

    def __init__(self, rows, args, vocab, labels, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(args.min_length, args.max_length, (rows,), generator=g).tolist()
        self.items = []
        for n in lengths:
            ids = torch.randint(2, vocab, (n,), generator=g)
            label = int((ids >= vocab // 2).float().mean() * labels * 0.999)
            self.items.append((ids, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        ids, label = self.items[i]
        return {"input_ids": ids, "labels": label}


def pad_collate(features):
    width = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), width, dtype=torch.long)
    for row, f in enumerate(features):
        ids[row, : len(f["input_ids"])] = f["input_ids"]
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([f["labels"] for f in features]),
    }


class Encoder(nn.Module):
    def __init__(self, args: ModelArguments):
        super().__init__()
        self.embed = nn.Embedding(args.vocab_size, args.hidden_size, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            args.hidden_size, 4, args.hidden_size * 2, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(args.hidden_size)
        self.classifier = nn.Linear(args.hidden_size, args.num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None].float()
        pooled = (self.norm(h) * mask).sum(1) / mask.sum(1)
        logits = self.classifier(pooled)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class EpochLoader(DataLoader):
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


class RankLoaderTrainer(Trainer):
    """Keeps the loader under our control: known batch count, no padding of the last batch."""

    def get_train_dataloader(self):
        sampler = DistributedSampler(
            self.train_dataset,
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
            shuffle=True,
            seed=self.args.seed,
            drop_last=True,
        )
        return EpochLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=sampler,
            collate_fn=self.data_collator,
            drop_last=True,
        )


def compute_metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments))
    model_args, data_args = parser.parse_args_into_dataclasses(args=sys.argv[1:])
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="tagrows_"),
        num_train_epochs=3,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=3e-3,
        warmup_steps=5,
        lr_scheduler_type="linear",
        logging_steps=8,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=13,
    )
    set_seed(training_args.seed)
    train = TagRows(data_args.train_rows, data_args, model_args.vocab_size, model_args.num_labels, seed=1)
    dev = TagRows(data_args.eval_rows, data_args, model_args.vocab_size, model_args.num_labels, seed=2)
    model = Encoder(model_args)
    trainer = RankLoaderTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        eval_dataset=dev,
        data_collator=pad_collate,
        compute_metrics=compute_metrics,
    )
    set_seed(training_args.seed + 1 + training_args.process_index)
    result = trainer.train()
    if trainer.is_world_process_zero():
        print({k: round(v, 4) for k, v in result.metrics.items() if "loss" in k}, flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
