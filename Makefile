# make demo   train four small variants on the CPU and compare them
# make test   everything that is checked: ruff, mypy, pytest
# Both first install what is missing into .venv. Another Python: make demo PYTHON=python3.12
# make clean  remove what make installed and cached; data/ and outputs/ are yours and stay

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test format clean

demo: .venv/installed
	$(BIN)/oelm demo

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis src/oelm.egg-info
	find src tests benchmarks experiments -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "OELM needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing into .venv: a few minutes the first time, most of it PyTorch"
	$(PIP) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the tools for the tests into .venv"
	$(PIP) --editable '.[dev]'
	@touch $@
