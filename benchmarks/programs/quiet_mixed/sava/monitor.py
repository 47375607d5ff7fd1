import collections


class ActivationMonitor:
    """Keeps an eye on the spread of layer outputs."""

    def __init__(self, model, kinds):
        self.history = collections.defaultdict(list)
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                self.handles.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def record(module, inputs, output):
            self.history[name].append(output.detach().std().item())
        return record

    def table(self, last=10):
        rows = {}
        for name, outs in self.history.items():
            values = outs[-last:]
            rows[name] = sum(values) / len(values)
        return rows
