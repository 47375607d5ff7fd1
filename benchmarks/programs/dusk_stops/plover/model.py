import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics as tm


class Classifier(L.LightningModule):
    def __init__(self, dim=256, hidden=768, classes=6, lr=3e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, classes))
        self.val_acc = tm.Accuracy(task="multiclass", num_classes=classes)
        self.val_confusion = tm.ConfusionMatrix(task="multiclass", num_classes=classes)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc.update(logits, y)
        self.val_confusion.update(logits, y)
        self.log("val_acc", self.val_acc, on_epoch=True)

    def per_class(self):
        """Recall of each class on the validation set."""
        m = self.val_confusion.compute().float()
        return (m.diag() / m.sum(1).clamp(min=1)).tolist()

    def on_validation_epoch_start(self):
        self.val_confusion.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
