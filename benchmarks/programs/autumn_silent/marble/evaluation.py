import torch
import torch.distributed as dist


@torch.no_grad()
def predict(model, loader):
    model.eval()
    preds = torch.cat([model(x).squeeze(-1) for x, _ in loader])
    model.train()
    return preds


def gather_predictions(local, size):
    """Collect the predictions of all ranks, dropping the samples the sampler added as padding."""
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return torch.cat(parts)[:size]


def r2_score(pred, target):
    residual = (target - pred).pow(2).sum()
    spread = (target - target.mean()).pow(2).sum()
    return (1 - residual / spread).item()


class EarlyStopping:
    def __init__(self, patience, min_delta=1e-3):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.best_epoch, self.best_state = -float("inf"), -1, None

    def update(self, score, epoch, model):
        if score > self.best + self.min_delta:
            self.best, self.best_epoch = score, epoch
            self.best_state = {k: v.clone() for k, v in model.state_dict().items()}
        return epoch - self.best_epoch >= self.patience
