"""Training a cohort of clients: the only room that knows about speed. It knows algorithms by their contract alone."""

from fedexp.config.settings import Hardware, Local
from fedexp.engine.context import Context
from fedexp.engine.contract import Batch, Client, ClientFunctions, Examples, Pass, Question, State, Trained
from fedexp.engine.engine import Engine
from fedexp.engine.inner_gradient import gradient

__all__ = [
    "Batch", "Client", "ClientFunctions", "Context", "Engine", "Examples", "Hardware", "Local", "Pass", "Question",
    "State", "Trained", "gradient",
]  # fmt: skip
