import argparse
import os
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from corpus import TaggingData
from module import Tagger

warnings.filterwarnings("ignore")


class Console(Callback):
    def __init__(self, every):
        self.every = every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and trainer.global_step % self.every == 0:
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f} lr {lr:.4f}",
                  flush=True)

    def on_validation_epoch_end(self, trainer, module):
        m = trainer.callback_metrics
        if trainer.is_global_zero and not trainer.sanity_checking and "val/loss" in m:
            print(f"epoch {trainer.current_epoch} val loss {m['val/loss']:.4f} "
                  f"acc {m['val/acc']:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=0.6)
    p.add_argument("--log-every", type=int, default=5)
    p.add_argument("--seed", type=int, default=8)
    a = p.parse_args()

    L.seed_everything(a.seed, verbose=False)
    world = int(os.environ.get("WORLD_SIZE", 1))
    data = TaggingData(batch_size=a.batch_size)
    steps = a.epochs * (data.n // (a.batch_size * world))
    model = Tagger(data.vocab, data.tags, lr=a.lr, steps=steps)
    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=a.epochs, gradient_clip_val=1.0, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, callbacks=[Console(a.log_every)],
        default_root_dir=tempfile.gettempdir())
    trainer.fit(model, datamodule=data)
    if trainer.is_global_zero:
        norm = torch.cat([x.detach().flatten() for x in model.parameters()]).norm()
        print(f"done after {trainer.global_step} steps, weight norm {norm:.4f}", flush=True)


if __name__ == "__main__":
    main()
