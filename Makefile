# `make up` runs the main job, `make test` every test. STACK=spark (or another) works on a real cluster.
STACK ?= lab
PY := .venv/bin/python
RUN := . ./env.sh &&
CHECKED := ask.py locks.py watch.py __main__.py settings hosts engines providers components policies lab toolchain bench tests
SHELL := /bin/bash -o pipefail
# Many tests wait for a process or a server: one worker more than processors keeps these busy.
WORKERS := -n $(shell echo $$(($$(nproc) + 1)))
# The many Python processes of an `up` and of the tests would each compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv toolchain lab up preview down unlock watch status ask test test-fast faults lint format schema bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

venv: .venv/.installed ## Python environment, pinned with hashes

.venv/.installed: requirements.txt requirements-dev.txt pyproject.toml
	python3 -m venv .venv
	$(PY) -m pip install --quiet --require-hashes -r requirements.txt
	$(PY) -m pip install --quiet --require-hashes -r requirements-dev.txt
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

toolchain: venv ## Pulumi: the one on PATH, or one built from package registries
	$(PY) -m toolchain

ifeq ($(STACK),lab)
lab: venv ## The two simulated Sparks
	$(PY) -m lab up
else
lab:
endif

DESTROY = --stack $(STACK) --yes --skip-preview

# Toolchain and lab know nothing of each other: side by side.
ready: venv
	@$(MAKE) --no-print-directory -j2 toolchain lab
	@$(RUN) pulumi stack select --create $(STACK) >/dev/null
.PHONY: ready

up: ready ## Converge the cluster, ask it for a completion if it serves
	$(RUN) pulumi up --stack $(STACK) --yes --policy-pack policies
	$(RUN) if pulumi stack output --stack $(STACK) endpoint >/dev/null 2>&1; then python -m ask --stack $(STACK); fi

preview: ready ## What is wrong with the live cluster; changes nothing
	$(RUN) pulumi preview --stack $(STACK) --diff

down: toolchain ## Remove everything of the cluster from the hosts
	$(RUN) pulumi destroy $(DESTROY) || { \
	  echo "What can be removed all the same (docs/adr/0015-destroy-without-a-node.md):"; \
	  pulumi destroy $(DESTROY) --run-program=false --refresh=false --continue-on-error; }

unlock: ready ## After a pulumi that was killed: drop its lock and its pending operations
	$(RUN) pulumi cancel --stack $(STACK) --yes
	$(RUN) pulumi refresh --stack $(STACK) --clear-pending-creates --yes --skip-preview

watch: ready ## A preview every EVERY=5m; drift as one line; HEAL=1 repairs it by up
	$(RUN) python -m watch --stack $(STACK) --every $(or $(EVERY),5m) $(if $(HEAL),--heal)

status: toolchain ## Outputs and resources of the stack
	@if [ $(STACK) = lab ]; then $(PY) -m lab status || true; fi  # a lab that is down has a state all the same
	$(RUN) pulumi stack --stack $(STACK)

ask: venv ## Ask the model: make ask PROMPT="…"
	$(RUN) python -m ask --stack $(STACK) $(if $(PROMPT),"$(PROMPT)")

test: ready lint ## Every test but the long ones of the fault matrix (make faults)
	$(RUN) python -m pytest -m "not lab" $(WORKERS) --dist loadfile
	$(RUN) python -m pytest -m "lab and not matrix"

faults: ready ## Every fault of the matrix on the lab; writes docs/faults.md (an hour and a half)
	$(RUN) python -m pytest tests/lab/cluster -m lab --faults-report docs/faults.md

test-fast: venv ## Tests that need neither lab nor toolchain
	$(RUN) python -m pytest -m "not lab and not toolchain" $(WORKERS)

lint: venv ## ruff and mypy
	.venv/bin/ruff check $(CHECKED)
	.venv/bin/ruff format --check $(CHECKED)
	.venv/bin/mypy $(CHECKED)

format: venv ## Format and fix
	.venv/bin/ruff check --fix $(CHECKED)
	.venv/bin/ruff format $(CHECKED)

schema: venv ## JSON schema for editors and docs/settings.md, from the settings
	$(PY) -m settings

bench: ready ## Measure against a plain script, on the lab
	$(RUN) python -m bench && python -m bench images && python -m bench weights && python -m bench facts
	$(RUN) python -m lab up --nodes 8 && python -m bench scale && python -m lab up

clean: ## Remove the lab and all that was built
	@if [ -x $(PY) ] && [ -d .build/lab ]; then $(PY) -m lab down --purge; fi
	rm -rf .build .state .venv
