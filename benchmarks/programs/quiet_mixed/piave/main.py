import os
import warnings

import lightning as L
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from datamodule import Mixture
from module import TwinViews

warnings.filterwarnings("ignore", ".*does not have many workers.*")


class Printer(Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero and trainer.current_epoch % 5 == 0:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch} loss {m['loss'].item():.3f} spread {m['spread'].item():.4f}", flush=True)


def main():
    L.seed_everything(19)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_epochs=30, check_val_every_n_epoch=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, callbacks=[Printer()],
    )
    trainer.fit(TwinViews(), datamodule=Mixture())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
