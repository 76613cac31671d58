"""Downloaded archives become folders whole or not at all."""

import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory


def unpack(archive: Path, place: Path) -> None:
    """Make the folder `place` of an archive that holds its content, bare or in a folder of the same name.

    A folder cut short would be taken for the data set by the next run, so nothing appears before all is there. Raises
    OSError, EOFError, TarError or BadZipFile for what is damaged, or has members that lead out of the folder.
    """
    with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        whole = Path(beside) / "content"
        # Of a zip file Python itself keeps what leads out of the folder.
        shutil.unpack_archive(archive, whole, filter=None if zipfile.is_zipfile(archive) else "data")
        inner = whole / place.name
        if not place.exists():  # another run may have been faster
            (inner if inner.is_dir() else whole).rename(place)
