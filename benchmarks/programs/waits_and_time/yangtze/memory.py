class OutOfBudget(RuntimeError):
    pass


class ActivationBudget:
    """Refuses a forward pass that would keep more attention activations than the host can hold."""

    def __init__(self, limit: float):
        self.limit = limit
        self.used = 0

    def reset(self):
        self.used = 0

    def claim(self, nbytes: int):
        self.used += nbytes
        if self.used > self.limit:
            raise OutOfBudget(f"needs {self.used / 2**20:.1f} MiB, limit is {self.limit / 2**20:.1f} MiB")
