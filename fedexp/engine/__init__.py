"""Training a cohort of clients at once: the only room that knows about speed."""

from fedexp.engine.engine import Engine
from fedexp.engine.exchange import Batch, Exchange, Sent, Trained
from fedexp.engine.settings import Hardware, Local

__all__ = ["Batch", "Engine", "Exchange", "Hardware", "Local", "Sent", "Trained"]
