import dataclasses

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments, set_seed


class Tags(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, 90, (n, 18), generator=g)
        self.labels = (self.ids % 4).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


@dataclasses.dataclass
class Probe:
    name: str
    data: Dataset


class ProbeCallback(TrainerCallback):
    """Writes the accuracy on a few small probe sets after each epoch."""

    def __init__(self, probes):
        self.probes = probes
        self.trainer = None
        self.history = []

    def on_epoch_end(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        for probe in self.probes:
            out = self.trainer.predict(probe.data, metric_key_prefix=probe.name)
            acc = (out.predictions.argmax(-1) == out.label_ids).mean()
            self.history.append((state.epoch, probe.name, float(acc)))
            print(f"[probe] epoch {state.epoch:.0f} {probe.name} accuracy {acc:.3f}", flush=True)


def main():
    args = TrainingArguments(
        output_dir="tagger_out",
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=8,
        num_train_epochs=2,
        learning_rate=3e-3,
        save_strategy="no",
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        seed=5,
    )
    set_seed(args.seed)
    cfg = BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=24, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    callback = ProbeCallback([Probe("short", Tags(16, 7)), Probe("long", Tags(32, 8))])
    trainer = Trainer(
        model=BertForTokenClassification(cfg), args=args, train_dataset=Tags(192, 0), callbacks=[callback]
    )
    callback.trainer = trainer
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
