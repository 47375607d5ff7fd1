import argparse
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class TaggerConfig(PretrainedConfig):
    model_type = "small-tagger"

    def __init__(self, vocab=120, hidden=48, tags=6, **kwargs):
        self.vocab = vocab
        self.hidden = hidden
        self.tags = tags
        super().__init__(**kwargs)


class Tagger(PreTrainedModel):
    config_class = TaggerConfig
    accepts_loss_kwargs = False

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.mix = nn.Conv1d(config.hidden, config.hidden, 3, padding=1)
        self.classifier = nn.Linear(config.hidden, config.tags)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0.0, 0.05)

    def forward(self, input_ids, labels=None, **kwargs):
        hidden = self.embed(input_ids)
        hidden = F.gelu(self.mix(hidden.transpose(1, 2)).transpose(1, 2))
        logits = self.classifier(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class TagData(Dataset):
    def __init__(self, size=512, length=24, vocab=120, tags=6):
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, vocab, (size, length), generator=g)
        self.tags = (self.ids + self.ids.roll(1, dims=1)) % tags

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.tags[i]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    opts = parser.parse_args()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=opts.accumulate,
        max_steps=opts.steps,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        seed=13,
        max_grad_norm=0.0,
        disable_tqdm=True,
        optim="sgd",
        dataloader_drop_last=True,
    )
    trainer = Trainer(model=Tagger(TaggerConfig()), args=args, train_dataset=TagData())
    trainer.train()


if __name__ == "__main__":
    main()
