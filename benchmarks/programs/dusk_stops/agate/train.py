"""Lightning classifier with a per-class report written by rank zero."""
import argparse
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy

from data import BlobsDataModule
from model import Classifier
from report import BestReport

warnings.filterwarnings("ignore")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--devices", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--report-after", type=int, default=2, help="first epoch for which reports are kept")
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    out = args.out or tempfile.mkdtemp(prefix="report_")

    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, num_nodes=1, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=out,
        callbacks=[BestReport(out, start_epoch=args.report_after)],
    )
    trainer.fit(Classifier(), datamodule=BlobsDataModule(args.batch_size))
    trainer.print("finished, val acc", float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main()
