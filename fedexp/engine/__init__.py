"""Local training of a cohort. Only this package deals with speed; it knows an algorithm by its contract alone."""

from fedexp.config.settings import Hardware, Local
from fedexp.engine.context import Context
from fedexp.engine.contract import Batch, Client, ClientFunctions, Examples, Pass, Question, State, Trained
from fedexp.engine.engine import Engine
from fedexp.engine.inner_gradient import gradient

__all__ = [
    "Batch", "Client", "ClientFunctions", "Context", "Engine", "Examples", "Hardware", "Local", "Pass", "Question",
    "State", "Trained", "gradient",
]  # fmt: skip
