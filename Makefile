# make demo: sets up and speeds up the example, with proof.   make test: sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export STEPTIME_SHARED ?= $(wildcard ../shared)

.PHONY: setup demo test test-slow check format bench clean

setup: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "steptime needs Python >= 3.11: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,attach,frameworks,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps mlfinpy==0.1.2
	touch $@

demo: setup
	$(BIN)/python scripts/demo.py --json out/demo.json

test: setup
	$(BIN)/python -m pytest -m 'not slow and not gpu'

test-slow: setup
	$(BIN)/python -m pytest -m 'slow and not gpu' --timeout=1200

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script --quick || exit 1; done

clean:
	rm -rf $(VENV) out
