# What people type here. `make` alone lists it.
PYTHON ?= python3
REPOSITORY ?= model_repository
ARGS ?=
# All tests: a worker on each core and one more. Some of them: this process alone, which is there sooner.
WORKERS ?= $(if $(ARGS),0,auto)
# 0: install no Debian packages that tests need; they say which.
SYSTEM ?= 1
export SYSTEM
# An image may set it, and then each of a few hundred processes would compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

# Each Python has environments of its own: .venv/test of python3, .venv/python3.13/test of PYTHON=python3.13.
VENV := .venv$(patsubst %,/%,$(filter-out python3,$(notdir $(PYTHON))))
DEMO := $(VENV)/demo/bin
TEST := $(VENV)/test/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo docs kernels test test-full test-lowest test-slow test-docker loadtest check fix lock release triton triton-serve serve clean env-demo env-docker env-docs env-release env-system env-test

help: ## this list
	@echo "Rationale: one graph that answers with the prediction and its explanation."
	@echo
	@echo "  make TARGET [PYTHON=python3.12]   everything a target needs is set up by itself, once"
	@echo
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' \
		| while IFS='|' read -r name text; do printf '  %-14s %s\n' "$$name" "$$text"; done

demo: env-demo ## decide on four loan applicants: compile, serve, ask over HTTP (no torch; ends by itself)
	@$(DEMO)/rationale demo

docs: env-docs ## build the manual into build/site, offline and strict: index.html opens without a server
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet
	@echo "build/site/index.html; with the search: $(PYTHON) -m http.server --directory build/site"

PYTEST := $(TEST)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 25

test: env-system env-test ## the tests, against a real Triton too; ARGS="-k name" picks some
	@$(PYTEST) $(ARGS)

test-full: env-system env-test ## what those leave out: every sample, every node test of ONNX, more random graphs
	@$(PYTEST) -m 'full and not slow and not gpu and not docker' $(ARGS)

LOWEST := $(VENV)/lowest/bin/python
LOWEST_TESTS := tests/compiler/rules tests/compiler/trees tests/compiler/methods tests/compiler/cli tests/compiler/conversion \
	tests/compiler/integrations tests/compiler/references tests/compiler/explanations tests/service/api tests/service/cli

test-lowest: env-test ## demo and tests with the lowest versions that pyproject.toml allows; ARGS picks tests
	@$(TEST)/uv venv --quiet --clear --python $(PYTHON) $(VENV)/lowest
	@$(TEST)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[test]'
	@$(TEST)/uv venv --quiet --clear --python $(PYTHON) $(VENV)/least
	@$(TEST)/uv pip install --quiet --python $(VENV)/least/bin/python --resolution lowest-direct --editable '.[serve]'
	@$(VENV)/least/bin/rationale demo
	@$(LOWEST) -m pytest --numprocesses auto --dist loadfile $(or $(ARGS),$(LOWEST_TESTS))

test-slow: env-system env-test ## only the tests that take minutes: run them before a release
	@$(TEST)/python -m pytest -m slow --timeout 3600 $(ARGS)

test-docker: env-docker env-test ## only the tests of the images and the compose file, on a real Docker engine
	@$(TEST)/python -m pytest -m docker $(ARGS)

kernels: env-test ## build the optional library of kernels and install it beside the tests (docs/kernels.md)
	@$(TEST)/uv pip install --quiet --python $(TEST)/python --reinstall ./kernels

loadtest: env-test ## load on us and on SHAP's and captum's services, a report; ARGS="--profile full" for hours
	@$(TEST)/python -m loadtests $(ARGS)

check: env-test ## lint, format, strict types, import contract and plain docstrings, changing nothing
	@$(TEST)/ruff check .
	@$(TEST)/ruff format --check .
	@$(TEST)/mypy
	@$(TEST)/lint-imports
	@$(TEST)/python scripts/words.py

fix: env-test ## let ruff repair and format what it can
	@$(TEST)/ruff check --fix .
	@$(TEST)/ruff format .

LOCK := $(TEST)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock"

lock: env-test ## write anew which versions the images install, with their hashes
	@echo "hatchling" | $(LOCK) pyproject.toml - --extra serve --extra audit --extra jwt --extra postgres --extra redis --extra s3 --extra tracing --upgrade -o requirements.lock
	@echo "onnxruntime-gpu[cuda,cudnn]>=1.29,<2" | $(LOCK) - --constraint requirements.lock --upgrade -o requirements-gpu.lock

release: env-release ## build wheel, sdist and lists of components into dist, check them, and audit the locks
	@$(VENV)/release/bin/python scripts/release.py

serve: env-demo ## run the gateway on model_repository; REPOSITORY=folder, ARGS="--port 9000"
	@$(DEMO)/rationale serve --repository $(REPOSITORY) $(ARGS)

triton: ## fetch a Triton server that needs no Docker into .triton, once
	@$(PYTHON) scripts/triton/fetch.py

triton-serve: triton ## run that Triton on model_repository; REPOSITORY=folder
	@$(PYTHON) scripts/triton/serve.py --repository $(REPOSITORY) $(ARGS)

clean: ## remove environments, the fetched Triton and every cache
	@rm -rf .venv .triton .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

env-demo:
	@$(PYTHON) scripts/env.py demo $(VENV)

# What tests need beyond Python packages. First: an environment needs venv.
env-system:
	@$(PYTHON) -m scripts.system test

env-docker:
	@$(PYTHON) -m scripts.system docker

env-docs:
	@$(PYTHON) scripts/env.py docs $(VENV)

env-release:
	@$(PYTHON) scripts/env.py release $(VENV)

env-test:
	@$(PYTHON) scripts/env.py test $(VENV)
