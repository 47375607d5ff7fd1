import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

STAGES = ("captioning", "classification")


class CurriculumTrainer:
    def __init__(self, model, make_dataset, epochs=2, batch=16, lr=2e-3):
        self.make_dataset, self.epochs, self.batch = make_dataset, epochs, batch
        self.model = DDP(model) if dist.is_initialized() else model
        self.lr = {"encoder": lr, "rest": lr / 2}

    def _get_model(self):
        return self.model.module if hasattr(self.model, "module") else self.model

    def _optimizer(self):
        m = self._get_model()
        enc = list(m.encoder.parameters())
        ids = {id(p) for p in enc}
        rest = [p for p in m.parameters() if id(p) not in ids]
        return torch.optim.AdamW([{"params": enc, "lr": self.lr["encoder"]}, {"params": rest, "lr": self.lr["rest"]}])

    def _train_stage(self, stage):
        ds = self.make_dataset(stage)
        sampler = DistributedSampler(ds, shuffle=True, seed=13)
        loader = DataLoader(ds, batch_size=self.batch, sampler=sampler, drop_last=True)
        opt = self._optimizer()
        for epoch in range(self.epochs):
            sampler.set_epoch(epoch)
            running = 0.0
            for batch in loader:
                opt.zero_grad()
                loss = self._get_model().compute_loss(batch)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                opt.step()
                running += loss.item()
            mean = torch.tensor(running / len(loader))
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"[{stage}] epoch {epoch} loss {mean:.4f}", flush=True)

    def run(self):
        for stage in STAGES:
            self._train_stage(stage)
