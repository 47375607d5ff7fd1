import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

log = logging.getLogger("trainer")


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.reset()

    def reset(self):
        self.loss_sum, self.correct, self.seen, self.failed = 0.0, 0, 0, 0

    def training_step(self, reader, idx):
        x, y = reader.load(idx)
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss_sum += loss.item() * len(y)
        self.correct += int((logits.argmax(1) == y).sum())
        self.seen += len(y)

    def train_epoch(self, reader, epoch):
        self.reset()
        for step, idx in enumerate(reader.order(epoch)):
            try:
                self.training_step(reader, idx)
            except (ValueError, RuntimeError) as err:
                # one broken batch must not take a week long run down
                log.warning("step %d skipped: %s", step, err)
                self.failed += 1
                self.optimizer.zero_grad(set_to_none=True)

    def summarize(self):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.loss_sum, self.correct, self.seen, self.failed))
        loss, correct, seen, failed = (sum(v) for v in zip(*parts))
        return {"loss": round(loss / seen, 4), "acc": round(correct / seen, 4), "failed": failed}
