from dataclasses import dataclass, field

import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

from records import Records, write_records


@dataclass
class DataArguments:
    sources: list[str] = field(default_factory=lambda: ["news", "forum", "tickets"])
    rows: int = 128
    vocab: int = 90
    length: int = 16


def training_arguments():
    return TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-3,
        logging_steps=8, save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo",
        disable_tqdm=True, seed=31, average_tokens_across_devices=False,
    )


def prepare(args, data):
    paths = [f"{name}.jsonl" for name in data.sources]
    with args.main_process_first(desc="write records"):
        if args.process_index == 0:
            for k, path in enumerate(paths):
                write_records(path, data.rows, data.vocab, seed=k)
    return Records(paths, data.length)


def main():
    (data,) = HfArgumentParser(DataArguments).parse_args_into_dataclasses()
    args = training_arguments()
    train_set = prepare(args, data)
    config = BertConfig(
        vocab_size=data.vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=data.length, num_labels=4,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=train_set)
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
