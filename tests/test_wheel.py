"""The installed wheel carries the config tree and runs from any folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from program import FEW

ROOT = Path(__file__).parent.parent


def test_wheel_has_conf_and_runs(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert (site / "fedexp" / "conf" / "algorithm" / "fedcat.yaml").exists()
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import fedexp.main as m;"
        "assert 'site' in m.__file__ and str(m.CONF).startswith(sys.path[0]);"
        f"sys.argv = ['fedexp', *{FEW}, 'tracking=none', 'rounds=1', 'model.hidden=8']; m.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "outputs").is_dir()
