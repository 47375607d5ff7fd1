import torch


class ActivationProbes:
    """Per-layer activation statistics for the run log.

    Hooks collect what the layers put out; `flush` turns the collected pieces
    into mean, deviation and share of dead units.
    """

    def __init__(self, model, layer_types, every: int):
        self.every = every
        self.step = 0
        self.enabled = True
        self.records = {}
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, layer_types):
                self.records[name] = []
                self.handles.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def hook(module, inputs, output):
            if self.enabled and module.training:
                self.records[name].append(output)
        return hook

    def tick(self):
        self.step += 1
        if self.step % self.every:
            return None
        return self.flush()

    @torch.no_grad()
    def flush(self):
        rows = {}
        for name, outs in self.records.items():
            if not outs:
                continue
            last = torch.cat([o.flatten(1) for o in outs[-self.every:]])
            rows[name] = (last.mean().item(), last.std().item(), (last.abs() < 1e-4).float().mean().item())
        return rows

    def close(self):
        for h in self.handles:
            h.remove()
        self.records.clear()
