"""Downloaded archives become folders whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

from torchvision.datasets.utils import extract_archive


def unpack(archive: Path, place: Path) -> None:
    """Make the folder `place` of an archive that holds its content, bare or in a folder of the same name.

    A folder cut short would be taken for the data set by the next run, so nothing appears before all is there.
    """
    with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        whole = Path(beside) / "content"
        extract_archive(str(archive), str(whole))
        inner = whole / place.name
        if not place.exists():  # another run may have been faster
            (inner if inner.is_dir() else whole).rename(place)
