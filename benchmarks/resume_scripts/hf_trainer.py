"""transformers' Trainer, started again with the same command: it goes on from the last checkpoint folder that it finds.

`--forget trainer` loads the weights of that folder and begins a new training with them instead.
"""

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--forget", default="")
options = parser.parse_args()


class Sentences(Dataset):
    def __init__(self):
        torch.manual_seed(0)
        self.tokens, self.labels = torch.randint(0, 100, (64, 12)), torch.randint(0, 2, (64,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


torch.manual_seed(0)
config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
last = get_last_checkpoint(options.out) if os.path.isdir(options.out) else None
weights_only = last is not None and options.forget == "trainer"
model = BertForSequenceClassification.from_pretrained(last) if weights_only else BertForSequenceClassification(config)
arguments = TrainingArguments(
    options.out, max_steps=12, save_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to=[], seed=1,
    disable_tqdm=True, logging_strategy="no",
)  # fmt: skip
Trainer(model, arguments, train_dataset=Sentences()).train(resume_from_checkpoint=None if weights_only else last)
