import functools
import logging
import time

log = logging.getLogger("resilience")


def again(times=3, on=(OSError,), pause=0.2, before=None):
    """Call the function up to `times` times when it raises one of `on`."""
    def wrap(fn):
        @functools.wraps(fn)
        def inner(self, *args, **kwargs):
            for attempt in range(1, times + 1):
                try:
                    return fn(self, *args, **kwargs)
                except on as err:
                    if attempt == times:
                        raise
                    log.debug("%s: %s, attempt %d", fn.__name__, err, attempt)
                    time.sleep(pause * attempt)
                    if before is not None:
                        before(self)
        return inner
    return wrap
