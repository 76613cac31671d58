# The two commands: `make run` and `make test`. Both install into .venv first, if that is not done yet.
# `make test-all` adds the tests that take longer than seconds: the campaign of attacks (tests/campaign), whole.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test test-all test-gpu install bench lint clean

run: install
	$(BIN)/python -m fedexp algorithm=fedcat partition=dir0.1

# A file to a core, in the order of tests/conftest.py.
test: install
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-all: install
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m ''

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[dev,cluster,speech,privacy,search,tensorboard]'
	touch $(STAMP)

# On a machine with a GPU, which the other tests do not use.
test-gpu: install
	$(BIN)/python -m pytest -m gpu

bench: install
	$(BIN)/python -m fedexp bench

lint: install
	$(BIN)/ruff check fedexp tests
	$(BIN)/ruff format --check fedexp tests
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
