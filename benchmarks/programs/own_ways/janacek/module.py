import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

PAD = -100


class Tagger(L.LightningModule):
    """Sequence tagger; only positions that carry a label count."""

    def __init__(self, vocab, tags, width=48, lr=0.2, steps=100):
        super().__init__()
        self.save_hyperparameters()
        self.emb = nn.Embedding(vocab, width, padding_idx=0)
        self.rnn = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(width, tags)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.out(h)

    def _token_losses(self, batch):
        logits = self(batch["tokens"])
        losses = F.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten(),
                                 ignore_index=PAD, reduction="none")
        labelled = batch["tags"].ne(PAD).flatten()
        hit = (logits.argmax(-1).flatten() == batch["tags"].flatten()) & labelled
        return losses, labelled, hit

    def training_step(self, batch, batch_idx):
        losses, labelled, _ = self._token_losses(batch)
        count = labelled.sum().float()
        everywhere = self.trainer.strategy.reduce(count.clone(), reduce_op="sum")
        loss = losses.sum() * self.trainer.world_size / everywhere.clamp(min=1)
        self.log("train/loss", loss.detach(), on_step=True, batch_size=len(batch["tags"]))
        return loss

    def on_validation_epoch_start(self):
        self.totals = torch.zeros(3, device=self.device)

    def validation_step(self, batch, batch_idx):
        losses, labelled, hit = self._token_losses(batch)
        self.totals += torch.stack([losses.sum(), hit.sum().float(), labelled.sum().float()])

    def on_validation_epoch_end(self):
        total = self.trainer.strategy.reduce(self.totals, reduce_op="sum")
        self.log("val/loss", total[0] / total[2], rank_zero_only=False, sync_dist=True)
        self.log("val/acc", total[1] / total[2], rank_zero_only=False, sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr,
                                                    total_steps=self.hparams.steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}
