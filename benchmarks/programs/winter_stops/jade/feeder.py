import logging

log = logging.getLogger("feeder")


class SteadyFeeder:
    """Never lets one worker stall the job: hiccups of the source are bridged with the previous batch."""

    def __init__(self, source):
        self.source = source
        self.last = None
        self.bridged = 0

    def next(self):
        try:
            self.last = next(self.source)
        except OSError as e:
            if self.last is None:
                raise
            self.bridged += 1
            log.debug("bridged batch: %r", e)
        return self.last
