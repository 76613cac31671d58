from fedexp.api import compose as compose
from fedexp.api import load as load
from fedexp.api import report as report
from fedexp.api import run as run
from fedexp.api import sweep as sweep

__version__: str

def make_callable(package: str) -> None: ...
