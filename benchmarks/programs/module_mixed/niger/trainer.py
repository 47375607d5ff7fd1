from dataclasses import dataclass

import torch
import torch.nn.functional as F

from accel import Accelerator


@dataclass
class TrainingArguments:
    learning_rate: float = 0.05
    gradient_accumulation_steps: int = 4
    max_steps: int = 12
    logging_steps: int = 3
    weight_decay: float = 0.0


class Trainer:
    def __init__(self, model, args, loader):
        self.args, self.loader = args, loader
        self.accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
        optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9,
                                    weight_decay=args.weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def compute_loss(self, batch):
        logits = self.model(batch["input"])
        return F.cross_entropy(logits, batch["label"])

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        if self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()

    def train(self):
        done, running = 0, 0.0
        stream = iter(self.loader)
        while done < self.args.max_steps:
            batch = next(stream)
            with self.accelerator.accumulate(self.model):
                running += self.training_step(batch).item()
                self.optimizer.step()
                if self.accelerator.state.sync:
                    done += 1
                    if done % self.args.logging_steps == 0 and self.accelerator.is_main:
                        print(f"step {done} loss {running / self.args.logging_steps:.4f}", flush=True)
                        running = 0.0
                self.optimizer.zero_grad()
