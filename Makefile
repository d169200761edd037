# make serve   install into .venv, fetch the model, serve on http://127.0.0.1:8000
# make test    install what the tests need too, then lint, type-check and test
# make lint    only lint and type-check        make clean    remove what the above made here
# make vendor  fetch the page's third-party files anew (needs npm)
# Options:     make serve ARGS="--port 9000 --model /path/to/model"    make PYTHON=python3.12 ...

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve test lint vendor clean browser
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' $(MAKEFILE_LIST)

serve: $(VENV)/.installed
	@exec $(BIN)/tickwire serve $(ARGS)

# Most tests run side by side; those of the real model on all cores, in a browser or not, come after, one by one.
# In the order of their names, files that take long are not the last ones.
ONE_BY_ONE := tests/models/test_default_model.py tests/models/test_parameters.py \
  tests/app/test_parity.py tests/app/test_serve.py tests/browser/real tests/browser/test_lighthouse.py

test: lint browser
ifeq ($(ARGS),)
	$(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(ONE_BY_ONE))
	$(BIN)/pytest $(ONE_BY_ONE)
else
	$(BIN)/pytest $(ARGS)
endif

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

vendor:
	$(PYTHON) static/vendor/fetch.py --update

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so an interrupted installation is taken up again, and a finished one
# costs the next start nothing.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Tickwire needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one like this: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	@touch $@

# Dependency groups need a newer pip than Python 3.11 brings.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --quiet 'pip>=25.1'
	$(PIP) install --group test
	@touch $@

# The browser tests drive the system's Chromium; without one they skip and say so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium for the browser tests"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; \
	  else false; fi || echo "No Chromium: the browser tests will be skipped"; }
