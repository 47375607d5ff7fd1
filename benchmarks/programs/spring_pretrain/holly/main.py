"""Packed-sequence pretraining with Lightning (DDP, 2 CPU processes)."""
import argparse
import os
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data import PackedDocs, collate
from packed import PackedLM


class PretrainModule(L.LightningModule):
    def __init__(self, vocab, dim, heads, layers, max_doc, lr, warmup):
        super().__init__()
        self.save_hyperparameters()
        self.net = PackedLM(vocab, dim, heads, layers, max_doc)

    def training_step(self, batch, _):
        logits = self.net(batch["tokens"], batch["positions"], batch["cu_seqlens"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        self.log("train_loss", loss, on_step=True, prog_bar=False)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / self.hparams.warmup))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Progress(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and trainer.global_step % 20 == 0:
            print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--total", type=int, default=1024)
    ap.add_argument("--max-doc", type=int, default=256)
    ap.add_argument("--vocab", type=int, default=128)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    L.seed_everything(0)
    world = int(os.environ.get("WORLD_SIZE", 1))
    data = PackedDocs(args.steps * world, args.total, args.vocab, args.max_doc, seed=1)
    loader = DataLoader(data, batch_size=1, shuffle=True, collate_fn=collate, num_workers=0)
    module = PretrainModule(args.vocab, args.dim, 2, 2, args.max_doc, args.lr, 20)
    trainer = L.Trainer(accelerator="cpu", devices=world, strategy="ddp", max_steps=args.steps,
                        gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Progress()],
                        default_root_dir=os.path.join(tempfile.gettempdir(), f"packed-{os.getppid()}"))
    trainer.fit(module, loader)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
