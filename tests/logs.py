"""Collect log messages of `flare.reproduce` in tests."""

import logging


class Log(logging.Handler):
    """Log messages of `flare.reproduce` within a `with` block, in `lines`."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        self.logger = logging.getLogger("flare.reproduce")
        self.level_before = self.logger.level
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self)
        return self

    def __exit__(self, *_):
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level_before)
