import argparse

import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping, EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from module import Classifier, Signals


class Report(Callback):
    def on_validation_end(self, trainer, pl_module):
        if trainer.is_global_zero and not trainer.sanity_checking:
            m = {k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()}
            print(f"epoch {trainer.current_epoch} {m}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--devices", type=int, default=2)
    args = ap.parse_args()
    L.seed_everything(42, workers=True)
    dm = Signals(args.batch)
    steps = args.epochs * (3072 // args.devices // args.batch // args.accumulate)
    model = Classifier(total_steps=steps)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate, gradient_clip_val=1.0, log_every_n_steps=5,
        enable_progress_bar=False, enable_model_summary=False, logger=CSVLogger("logs"),
        callbacks=[EMAWeightAveraging(decay=0.95), EarlyStopping("val_loss", patience=4),
                   ModelCheckpoint("ckpt", monitor="val_acc", mode="max"), LearningRateMonitor("step"), Report()])
    trainer.fit(model, datamodule=dm)


if __name__ == "__main__":
    main()
