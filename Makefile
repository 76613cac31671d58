# The two commands: `make run` and `make test`. Both install into .venv first, if that is not done yet.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test install bench lint clean

run: install
	$(BIN)/python -m fedexp algorithm=fedcat partition=dir0.1

# A file to a core, in the order of tests/conftest.py; threads would only wait.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[dev,cluster,speech]'
	touch $(STAMP)

bench: install
	$(BIN)/python -m fedexp.bench

lint: install
	$(BIN)/ruff check fedexp tests
	$(BIN)/ruff format --check fedexp tests

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
