import torch


class ActivationProbe:
    """Collects layer outputs so that their statistics can be logged now and then."""

    def __init__(self, model, layer_types):
        self.records = {}
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, layer_types):
                self.records[name] = []
                self.handles.append(module.register_forward_hook(self._make_hook(name)))

    def _make_hook(self, name):
        def hook(module, inputs, output):
            self.records[name] = [output.detach()]
        return hook

    @torch.no_grad()
    def summary(self):
        report = {}
        for name, outs in self.records.items():
            last = outs[-1]
            report[name] = (last.mean().item(), last.std().item(),
                            (last == 0).float().mean().item())
        return report

    def close(self):
        for h in self.handles:
            h.remove()
