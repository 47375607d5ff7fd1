import torch
import torch.distributed as dist
import torch.nn.functional as F


class PerceptualMetric:
    """Collects predictions of the whole validation set before scoring them."""

    def __init__(self):
        self.pred, self.true = [], []

    def update(self, pred, true):
        self.pred.append(pred)
        self.true.append(true)

    def compute(self):
        p, t = torch.cat(self.pred), torch.cat(self.true)
        mse = F.mse_loss(p, t)
        out = torch.stack([mse, -10 * torch.log10(mse + 1e-8)]).detach()
        dist.all_reduce(out, op=dist.ReduceOp.AVG)
        return out.tolist()


class Loop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def train_epoch(self, loader):
        self.model.train()
        for noisy, clean in loader:
            loss = F.l1_loss(self.model(noisy), clean)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        metric = PerceptualMetric()
        net = self.model.module
        for noisy, clean in loader:
            metric.update(net(noisy), clean)
        return metric.compute()
