import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from report import CsvReport, Meters


class Engine:
    def __init__(self, cfg, model, rank):
        self.cfg = cfg
        self.rank = rank
        self.model = DDP(model)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.meters = Meters(cfg.num_classes)
        self.report = CsvReport("progress.csv") if rank == 0 else None
        self.step = 0

    def train_step(self, x, y):
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        self.meters.update(loss, logits, y)
        self.step += 1

    def flush(self):
        row = self.meters.summary()
        if self.report is not None:
            self.report.write(self.step, row)
        self.meters.reset()

    def fit(self, loader, sampler):
        for epoch in range(self.cfg.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                self.train_step(x, y)
                if self.step % self.cfg.report_every == 0:
                    self.flush()
