import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 120, (n, 20), generator=g)
    labels = (ids[:, 0] > ids[:, 1]).long()
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()}).with_format("torch")


def make_model():
    cfg = BertConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(cfg)


def evaluate(accelerator, model, loader):
    model.eval()
    preds, refs = [], []
    for batch in loader:
        with torch.no_grad():
            out = model(**batch)
        p, r = accelerator.gather((out.logits.argmax(-1), batch["labels"]))
        preds.append(p)
        refs.append(r)
    preds, refs = torch.cat(preds), torch.cat(refs)
    return {"accuracy": (preds == refs).float().mean().item(), "n": len(refs)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--per_device_batch_size", type=int, default=16)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(13)
    train, val = make_split(320, 0), make_split(101, 1)
    train_loader = DataLoader(train, batch_size=args.per_device_batch_size, shuffle=True)
    val_loader = DataLoader(val, batch_size=args.per_device_batch_size)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, len(train_loader) * args.num_train_epochs)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}:", evaluate(accelerator, model, val_loader))
    accelerator.end_training()


if __name__ == "__main__":
    main()
