import csv

from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


class Meters:
    def __init__(self, num_classes):
        self.loss = MeanMetric()
        self.scores = MetricCollection({
            "acc": MulticlassAccuracy(num_classes, average="micro"),
            "f1": MulticlassF1Score(num_classes),
        })

    def update(self, loss, logits, target):
        self.loss.update(loss.detach())
        self.scores.update(logits.detach().softmax(-1), target)

    def summary(self):
        row = {"loss": self.loss.compute().item()}
        row.update({k: v.item() for k, v in self.scores.compute().items()})
        return row

    def reset(self):
        self.loss.reset()
        self.scores.reset()


class CsvReport:
    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.writer = None

    def write(self, step, row):
        row = {"step": step, **row}
        if self.writer is None:
            self.writer = csv.DictWriter(self.file, fieldnames=list(row))
            self.writer.writeheader()
        self.writer.writerow(row)
        self.file.flush()
        print(" ".join(f"{k}={v:.4g}" for k, v in row.items()), flush=True)
