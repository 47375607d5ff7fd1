"""First-order DARTS in Lightning: weights and architecture are optimised alternately."""
import argparse
import copy
import os
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from data import BalancedSampler, long_tail
from supernet import SuperNet

warnings.filterwarnings("ignore", ".*num_workers.*")


class WeightAveraging(L.Callback):
    """EMA shadow, updated on every process from its (equal) weights; used for validation."""

    def __init__(self, decay=0.98):
        self.decay, self.shadow, self.backup = decay, None, None

    def on_fit_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.net.state_dict())

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, *_):
        for k, v in module.net.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)

    def on_validation_epoch_start(self, trainer, module):
        self.backup = copy.deepcopy(module.net.state_dict())
        module.net.load_state_dict(self.shadow)

    def on_validation_epoch_end(self, trainer, module):
        module.net.load_state_dict(self.backup)


class Darts(L.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.automatic_optimization = False
        self.net = SuperNet()

    def configure_optimizers(self):
        weights = [p for n, p in self.net.named_parameters() if n != "alphas"]
        return (torch.optim.SGD(weights, lr=self.args.lr, momentum=0.9, weight_decay=3e-4),
                torch.optim.Adam([self.net.alphas], lr=3e-2, betas=(0.5, 0.999), weight_decay=1e-3))

    def training_step(self, batch, idx):
        w_opt, a_opt = self.optimizers()
        (x, y), (sx, sy) = batch["train"], batch["search"]
        # both optimizers see all the gradients, only their own are used
        if self.current_epoch >= self.args.warmup:
            a_opt.zero_grad()
            w_opt.zero_grad()
            self.manual_backward(F.cross_entropy(self.net(sx), sy))
            a_opt.step()
        w_opt.zero_grad()
        a_opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        self.clip_gradients(w_opt, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        w_opt.step()
        self.log("loss", loss, prog_bar=False, on_step=False, on_epoch=True, sync_dist=True)

    def validation_step(self, batch, idx):
        x, y = batch
        self.log("val_acc", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True, batch_size=len(y))

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            m = self.trainer.callback_metrics
            print(f"epoch {self.current_epoch} val acc {m['val_acc']:.3f} {self.net.genotype()}", flush=True)


class Data(L.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.args = args

    def setup(self, stage):
        self.train, self.search, self.val = long_tail(1200, 1), long_tail(1200, 2), long_tail(400, 3)

    def _balanced(self, ds, seed):
        t = self.trainer
        s = BalancedSampler(ds.tensors[1], len(ds) // t.world_size, t.global_rank, seed)
        return DataLoader(ds, self.args.batch_size, sampler=s, drop_last=True)

    def train_dataloader(self):
        return {"train": self._balanced(self.train, 1), "search": self._balanced(self.search, 2)}

    def val_dataloader(self):
        r, w = self.trainer.global_rank, self.trainer.world_size
        part = torch.utils.data.Subset(self.val, list(range(r, len(self.val), w)))
        return DataLoader(part, 100)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--warmup", type=int, default=1)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    out = args.out or tempfile.mkdtemp()
    L.seed_everything(7, verbose=False)
    trainer = L.Trainer(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 2)), max_epochs=args.epochs,
                        strategy=DDPStrategy(process_group_backend="gloo"), use_distributed_sampler=False,
                        callbacks=[WeightAveraging()], logger=False, enable_checkpointing=False, default_root_dir=out,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    model = Darts(args)
    trainer.fit(model, datamodule=Data(args))
    if trainer.is_global_zero:
        torch.save(model.net.state_dict(), os.path.join(out, "supernet.pt"))
        print("final", model.net.genotype())


if __name__ == "__main__":
    main()
