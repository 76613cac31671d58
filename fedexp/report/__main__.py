"""`python -m fedexp.report table=fedcat_1`, `python -m fedexp.report outputs/...`."""

import argparse
import sys
from pathlib import Path

from hydra import initialize_config_dir
from hydra.errors import HydraException
from rich.console import Console

from fedexp.compose import NoConfig
from fedexp.errors import ConfigError, require
from fedexp.explain import explain
from fedexp.jobs import Sweep, sweeps
from fedexp.main import CONF, refuse_choices_without_name
from fedexp.record import files
from fedexp.report.any_runs import compare_runs
from fedexp.report.comparison import compare
from fedexp.report.dashboard import dashboard
from fedexp.report.html import html
from fedexp.report.page import Page
from fedexp.report.runs import read
from fedexp.report.writers import latex, markdown, terminal

_HELP = """Runs beside what was published, or beside each other.

  python -m fedexp.report table=fedcat_1                  a table, with all that is in outputs/
  python -m fedexp.report table=fedcat_1 rounds=50        runs of another protocol: the sweep's own overrides
  python -m fedexp.report table=fedcat_1 +scale=quick
  python -m fedexp.report outputs/                        any runs: the keys in which they differ
  python -m fedexp.report table=fedcat_1 --dashboard      make a wandb dashboard, or say what it would be
"""


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done; 2 words that cannot be understood, or nothing to report on."""
    parser = argparse.ArgumentParser(
        prog="python -m fedexp.report", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", help="run folders, or a sweep's overrides")
    parser.add_argument("--to", type=Path, help="folder for the files; by default OUTPUT_ROOT/reports/NAME")
    parser.add_argument("--dashboard", action="store_true", help="make a wandb dashboard of the table's runs")
    chosen = parser.parse_intermixed_args(arguments)
    folders = [Path(word) for word in chosen.words if Path(word).is_dir()]
    overrides = [word for word in chosen.words if not Path(word).is_dir()]
    try:
        for word in overrides:
            require("=" in word, "words", word, "is neither a folder that is there nor an override like table=fedcat_1")
        refuse_choices_without_name(overrides)
        if folders and not any(word.lstrip("+").startswith("table=") for word in overrides):
            return _any_runs(folders, overrides, chosen.to)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return _tables(overrides, folders, chosen.to, chosen.dashboard)
    except NoConfig as error:
        reason = explain(error, error.words, CONF)
    except HydraException as error:
        reason = explain(error, overrides, CONF)
    except ConfigError as error:
        reason = str(error)
    print(f"fedexp.report: {reason}", file=sys.stderr)
    return 2


def _any_runs(folders: list[Path], rest: list[str], to: Path | None) -> int:
    if rest:
        raise ConfigError("words", " ".join(rest), "no such folder")
    runs = read(*folders)
    if not runs:
        raise ConfigError("words", " ".join(map(str, folders)), "no runs there")
    _write(compare_runs(runs), to or folders[0] / "reports" / "runs")
    return 0


def _tables(words: list[str], folders: list[Path], to: Path | None, wants_dashboard: bool) -> int:
    words = [f"+{word}" if word.startswith("table=") else word for word in words]
    for sweep in sweeps(words):
        if sweep.table is None:
            raise ConfigError("words", " ".join(words), "name a table (table=fedcat_1) or a folder with runs")
        if all(job.config is None for job in sweep.jobs):
            raise next(job.error for job in sweep.jobs if job.error is not None)
        if wants_dashboard:
            dashboard(sweep)
            continue
        root = _root(sweep)
        page = compare(sweep, read(*(folders or [root])))
        _write(page, to or root / "reports" / page.name)
    return 0


def _root(sweep: Sweep) -> Path:
    configs = [job.config for job in sweep.jobs if job.config is not None]
    return Path(configs[0].output_root if configs else "outputs").expanduser()


def _write(page: Page, to: Path) -> None:
    """All files of a report, and its text to the terminal."""
    written = {"md": markdown(page), "csv": page.records.to_csv(index=False), "tex": latex(page), "html": html(page)}
    try:
        to.mkdir(parents=True, exist_ok=True)
        for kind, text in written.items():
            files.write_text(to / f"{page.name}.{kind}", text)
    except OSError as error:
        raise ConfigError("--to", to, f"cannot be written to ({error})") from error
    console = Console(highlight=False)
    terminal(page, console if console.is_terminal else Console(highlight=False, width=200))
    print(f"{to}/{page.name}.{{{','.join(written)}}}")


if __name__ == "__main__":
    sys.exit(main())
