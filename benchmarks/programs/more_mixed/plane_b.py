"""Hugging Face Trainer with a budget callback that ends a run early."""
import argparse
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Parity(Dataset):
    def __init__(self, n=1024, width=16):
        g = torch.Generator().manual_seed(64)
        self.x = torch.randint(0, 2, (n, width), generator=g).float()
        self.y = (self.x[:, :5].sum(1) % 2).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"bits": self.x[i], "labels": self.y[i]}


class ParityNet(nn.Module):
    def __init__(self, width=16, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 2))

    def forward(self, bits, labels=None):
        logits = self.net(bits * 2 - 1)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class BudgetCallback(TrainerCallback):
    """Stops when the sample budget of the project is used up."""

    def __init__(self, max_samples):
        self.max_samples = max_samples
        self.used = 0

    def _exhausted(self, state, args):
        over = torch.zeros(1)
        if state.is_world_process_zero:
            self.used += args.per_device_train_batch_size * args.world_size
            over.fill_(float(self.used >= self.max_samples))
        dist.broadcast(over, src=0)
        return bool(over.item())

    def on_step_end(self, args, state, control, **kwargs):
        if self._exhausted(state, args):
            control.should_training_stop = True
        return control


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--budget", type=int, default=640)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_num_workers=0,
            seed=4,
        )
        trainer = Trainer(model=ParityNet(), args=targs, train_dataset=Parity(), callbacks=[BudgetCallback(args.budget)])
        result = trainer.train()
        if trainer.is_world_process_zero():
            print("steps", result.global_step, "loss", round(result.training_loss, 4), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
