"""Unpacking downloaded archives: a folder appears whole or not at all."""

import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory


def unpack(archive: Path, place: Path) -> None:
    """Create the folder `place` from an archive of its content, which may lie in a folder of the same name.

    The next run would take an incomplete folder for the data set, so it appears only once all is unpacked. Raises
    OSError, EOFError, TarError or BadZipFile for an archive that is damaged or has members outside of the folder.
    """
    with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
        whole = Path(beside) / "content"
        # In a zip file, Python itself handles members whose paths lead out of the folder.
        shutil.unpack_archive(archive, whole, filter=None if zipfile.is_zipfile(archive) else "data")
        inner = whole / place.name
        if not place.exists():  # another run may have been faster
            (inner if inner.is_dir() else whole).rename(place)
