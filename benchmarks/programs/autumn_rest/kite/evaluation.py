import torch
import torch.distributed as dist


def gather_rows(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t.contiguous())
    return torch.cat(parts)


class EvalLoop:
    def __init__(self, model, metrics):
        self.model = model
        self.metrics = metrics

    @torch.no_grad()
    def run(self, loader):
        self.model.eval()
        all_preds, all_labels = [], []
        for tokens in loader:
            inputs, labels = tokens[:, :-1], tokens[:, 1:]
            logits = self.model(inputs)
            all_preds.append(gather_rows(logits.argmax(-1).flatten()))
            all_labels.append(gather_rows(labels.flatten()))
        preds = torch.cat(all_preds)
        labels = torch.cat(all_labels)
        self.model.train()
        return {name: fn(preds, labels) for name, fn in self.metrics.items()}
