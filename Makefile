# Two commands set everything up on a machine with Python and make:
#   make demo    install, and run the main job on generated tasks
#   make test    install what the tests need, and run them all
# make pages renews the pages that code writes, make docs builds the site, make lint runs the linters.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One more than two cores: tests wait for servers, browsers and JVMs a tenth of their time.
WORKERS ?= 3

.PHONY: demo test lint types links pages docs release-check extras-check interop constraints clean

demo: $(VENV)/.demo
	$(BIN)/comap demo

test: $(VENV)/.test $(VENV)/.textworld
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) types

# What docstrings, settings, options and results say in docs/; a test compares the committed pages.
pages: $(VENV)/.test
	$(BIN)/python docs/hooks/pages.py
	$(BIN)/python docs/hooks/results.py

# Built without the network into build/site; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The root of this repository is the package itself, and its editable install an import hook, which type
# checkers do not follow: they read the package through links, which pyproject.toml tells them of.
types: $(VENV)/.lint links
	cd build/links && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p comap -p comap_envs

links:
	mkdir -p build/links
	ln -sfn ../.. build/links/comap
	ln -sfn ../../integrations/comap_envs build/links/comap_envs

# Before a release: versions, the README, and the wheel in a fresh environment of each Python that is there.
release-check:
	.ci/release-check

# Each extra alone in a fresh environment, and what it is for; EXTRAS="core search" names some. All: gigabytes.
extras-check:
	.ci/extras-check $(EXTRAS)

# Doors into stacks that cannot share our environment, each in one of its own; DOORS="verifiers" names some.
interop:
	.ci/interop $(DOORS)

# The newest releases that pyproject.toml allows, as pins; see CONTRIBUTING.md.
constraints: $(VENV)/.venv
	$(BIN)/python .ci/renew-constraints

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch and transformers are all that the demo's learned agent needs.
$(VENV)/.demo: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) --editable ".[viz,local]"
	touch $@

# torch comes first and alone: without an NVIDIA driver the CPU build, not 2.5 GB of CUDA.
$(VENV)/.torch: $(VENV)/.venv
	.ci/install-torch $(BIN)/python
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) --editable ".[test]"
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) --editable ".[lint]"
	touch $@

$(VENV)/.docs: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) --editable ".[docs]"
	touch $@

# The upstream engine, for the parity tests; it builds C and C++ code. Where it cannot be built
# those tests skip, saying so.
$(VENV)/.textworld: $(VENV)/.test
	$(PIP) "alfworld==0.4.2" "textworld==1.7.0" \
	  || echo "the TextWorld engine could not be installed: its parity tests will be skipped"
	touch $@

clean:
	rm -rf $(VENV) build runs .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
