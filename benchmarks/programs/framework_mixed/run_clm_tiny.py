import dataclasses
import sys

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclasses.dataclass
class DataArgs:
    train_rows: int = 320
    eval_rows: int = 61
    min_len: int = 6
    max_len: int = 40
    vocab: int = 96


def build(rows, d, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(rows):
        n = int(torch.randint(d.min_len, d.max_len, (1,), generator=g))
        start, step = torch.randint(2, d.vocab, (2,), generator=g).tolist()
        out.append([(start + i * (step % 5 + 1)) % (d.vocab - 2) + 2 for i in range(n)])
    return Dataset.from_dict({"input_ids": out, "length": [len(o) for o in out]})


class PadCollator:
    def __call__(self, rows):
        n = max(len(r["input_ids"]) for r in rows)
        ids = torch.zeros(len(rows), n, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for i, r in enumerate(rows):
            t = torch.tensor(r["input_ids"])
            ids[i, : len(t)] = t
            labels[i, : len(t)] = t
            mask[i, : len(t)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def main():
    parser = HfArgumentParser(DataArgs)
    (d,) = parser.parse_args_into_dataclasses(sys.argv[1:])
    args = TrainingArguments(
        output_dir="clm_out",
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=4,
        num_train_epochs=2,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        seed=9,
    )
    set_seed(args.seed)
    cfg = GPT2Config(vocab_size=d.vocab, n_positions=64, n_embd=48, n_layer=2, n_head=2)
    trainer = Trainer(
        model=GPT2LMHeadModel(cfg),
        args=args,
        train_dataset=build(d.train_rows, d, 0),
        eval_dataset=build(d.eval_rows, d, 1),
        data_collator=PadCollator(),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
