from collections import namedtuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

EvalOutput = namedtuple("EvalOutput", ["step", "metrics"])


class LMTrainer:
    def __init__(self, model, optimizer, train_loader, eval_loader, args):
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.eval_loader = eval_loader
        self.args = args
        self.global_step = 0
        self.eval_outputs = []

    def batch_sums(self, predictions, label_ids):
        correct = (predictions.argmax(-1) == label_ids).float().sum()
        nll = F.cross_entropy(predictions.flatten(0, 1), label_ids.flatten(), reduction="sum")
        return torch.stack([correct, nll, torch.tensor(float(label_ids.numel()))])

    def compute_metrics(self, sums):
        dist.all_reduce(sums)
        return {"accuracy": (sums[0] / sums[2]).item(), "loss": (sums[1] / sums[2]).item()}

    @torch.no_grad()
    def prediction_loop(self):
        self.model.eval()
        sums = torch.zeros(3)
        for ids in self.eval_loader:
            sums += self.batch_sums(self.model.module(ids[:, :-1]), ids[:, 1:])
        metrics = self.compute_metrics(sums)
        self.model.train()
        return EvalOutput(self.global_step, metrics)

    def best_step(self):
        return min(self.eval_outputs, key=lambda o: o.metrics["loss"]).step

    def train(self):
        rank = dist.get_rank()
        self.model.train()
        for epoch in range(self.args.epochs):
            self.train_loader.sampler.set_epoch(epoch)
            for ids in self.train_loader:
                logits = self.model(ids[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.global_step += 1
                if self.global_step % self.args.eval_steps == 0:
                    output = self.prediction_loop()
                    self.eval_outputs.append(output)
                    if rank == 0:
                        print(f"step {self.global_step} train_loss {loss.item():.4f} "
                              f"eval_loss {output.metrics['loss']:.4f} acc {output.metrics['accuracy']:.4f}", flush=True)
        if rank == 0:
            print("best step:", self.best_step())
