# Only python3 (3.11 or newer) and make are assumed; everything else goes into .venv.
PY := .venv/bin/python
NOTEBOOKS := $(sort $(basename $(notdir $(wildcard notebooks/[0-9][0-9]_*.ipynb))))
TEST_JOBS ?= 2
export JUPYTER_PREFER_ENV_PATH := 1

.PHONY: help install notebooks report real test test-ppo test-all test-rare test-lanes test-oldest test-lowest test-newest lanes check durations lab lint bench docs screenshots clean

#   help         these lines
#   install      TRL, vLLM and JupyterLab into .venv
#   check        lint and the tests that start no model, while you edit
#   lint         ruff and mypy
#   test         the tests before a commit
#   test-ppo     those of PPO, on the last TRL that has it
#   test-all     all tests, also on other releases
#   test-rare    those marked rare
#   test-oldest  what uses TRL, on the oldest TRL
#   test-lowest  the quick tests on the lowest releases of everything
#   test-newest  the quick tests on the newest releases of everything
#   test-lanes   test-oldest and test-lowest without slow tests
#   lanes        stops, positions and groups on each TRL between
#   durations    how long each test file takes, on an idle machine
#   lab          JupyterLab on this checkout
#   notebooks    executes all notebooks and stores their outputs
#   report       runs all notebooks and makes their report
#   real         the problems on a real model, for hours
#   bench        the benchmarks that need no GPU
#   docs         the site in build/site
#   screenshots  pictures of the docs
#   clean        removes .venv and what was built
help:
	@sed -n 's/^#   /make /p' Makefile

install: .venv/installed

.venv/installed: pyproject.toml $(addprefix requirements/,install.sh pins.txt constraints.txt overrides.txt ppo.txt)
	@requirements/install.sh

# Large blocks of memory are kept: a step takes less time on a CPU, a tenth with a toy, a quarter with a real model.
KEEP := MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592

# Two groups run at the same time and take about as long. 06 reads what 05 left, which is there long before.
SECOND := 01_% 04_% 07_% 09_% 10_%
report: .venv/installed
	@export $(KEEP); status=0; $(PY) -m workbench run -q $(filter $(SECOND),$(NOTEBOOKS)) $(filter 06_%,$(NOTEBOOKS)) & second=$$!; \
	$(PY) -m workbench run $(filter 05_%,$(NOTEBOOKS)) $(filter-out 05_% 06_% $(SECOND),$(NOTEBOOKS)) || status=$$?; \
	wait $$second || status=$$?; \
	$(PY) -m workbench report && $(PY) -m workbench status && exit $$status

# The five problems on a real instruct model, for hours. Called again it goes on where it was interrupted; `workbench status
# --runs-dir runs/real` says how far it is.
REAL = $(KEEP) $(PY) -m workbench sweep --runs-dir runs/real -p model=smollm2
real: .venv/installed
	$(REAL) 02_grpo_custom_stops -p dataset=number-words,sums -p steps=30 -p seeds=5 -p server=False
	$(REAL) 04_duplicate_prompts -p num_generations=8 -p steps=10 -p seeds=2 -p server=False
	$(REAL) 03_position_ids_and_padding -p steps=10 -p seeds=3 -p backend=both
	$(REAL) 01_ppo_eos_stop -p steps=10 -p seeds=5
	$(REAL) 10_do_the_weights_move -p learning_rate=1e-6 -p steps=40 -p seeds=5
	$(PY) -m benchmarks.dose --seeds 0 1 2 3 4 --runs runs/real/dose
	$(REAL) 05_grpo_docs_example -p steps=400 -p learning_rate=1e-6,1e-5 -p seed=0..2

# To run before a commit. workbench/ is there because the examples in its docstrings are tests too.
# One pytest with several workers: the longest files first, all tests that need vLLM on one worker (tests/helpers/whole_run.py).
PYTEST_ALL = $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile --ignore=tests/helpers
test: .venv/installed
	$(PYTEST_ALL) -m "not rare" --doctest-modules tests workbench $(PYTEST)
	$(MAKE) test-ppo

# The last release with PPO. It is a folder on the path.
OLDEST := $(shell sed -n 's/^trl==//p' requirements/ppo.txt)
WITH_PPO = PYTHONPATH=$(CURDIR)/.venv/lanes/trl-$(OLDEST) $(PYTEST_ALL)
OF_PPO = -k "ppo or PPO or what_is_tested" tests/experiments tests/runs tests/training $(PYTEST)
test-ppo: .venv/installed
	$(WITH_PPO) -m "not rare" --doctest-modules workbench/training/ppo.py workbench/training/ppo_rewards.py workbench/experiments $(OF_PPO)

# All tests: also those marked rare, other releases of TRL, and the lowest and newest releases of everything else.
test-all: test test-rare test-lanes test-newest
test-rare: .venv/installed
	$(PYTEST_ALL) -m rare tests $(PYTEST)
	$(WITH_PPO) -m rare $(OF_PPO)

# The tests that are not slow, on the oldest TRL and on the lowest releases of everything.
test-lanes:
	$(MAKE) test-oldest PYTEST='-q -m "not slow" $(PYTEST)'
	CI= $(MAKE) test-lowest  # which has no vLLM

# To run while you edit: the tests that start no model. The folders left out import TRL, which takes longer than all of these.
check: lint
	$(PYTEST_ALL) -q -m "not slow" --durations=0 --durations-min=1 tests $(addprefix --ignore=tests/,training watch experiments) $(PYTEST)

# Measures how long each file takes, on an idle machine. The next run is ordered by the result, tests/durations.json.
durations: .venv/installed
	$(PYTEST_ALL) --doctest-modules --record-durations tests workbench $(PYTEST)

# TRL is pure Python, so another release is a folder on the path. To try a new one, add it to LANES. 1.15.0 is left out: its loss
# calls a Triton kernel on any device, so it trains on GPUs only (there: make lanes LANES=1.15.0). 1.16.0 checks the device first.
LANES := 1.13.0 1.14.2
.venv/lanes/trl-%: | .venv/installed
	$(PY) -m pip install --quiet --no-deps --upgrade --target $@ trl==$*

# Everything that uses TRL, on the oldest release that the library supports.
test-oldest: .venv/installed
	$(WITH_PPO) tests/training tests/generation tests/consistency tests/replay tests/watch tests/experiments \
	tests/test_notebook_runs.py $(PYTEST)

# Stops, positions and groups on each release.
lanes: $(LANES:%=.venv/lanes/trl-%)
	@status=0; for lane in $^; do echo "== $$lane"; PYTHONPATH=$(CURDIR)/$$lane $(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile \
	tests/training/test_stopping.py tests/training/test_positions.py tests/training/test_groups.py \
	tests/training/test_groups_on_vllm.py $(PYTEST) || status=$$?; done; exit $$status

# The lowest releases that pyproject.toml allows, with the same torch. vLLM is left out: from 0.24 on it accepts no transformers 4.
.venv/lanes/lowest: requirements/lowest.txt | .venv/installed
	rm -rf $@ && $(PY) -m venv $@
	ln -s $(CURDIR)/.venv/lib/python3*/site-packages/torch* $(CURDIR)/.venv/lib/python3*/site-packages/functorch $@/lib/python3*/site-packages/
	$@/bin/python -m pip install --quiet -r requirements/lowest.txt -e '.[train,lab,dev]' || { rm -rf $@; exit 1; }

test-lowest: .venv/lanes/lowest
	$</bin/python -m pytest -q -n $(TEST_JOBS) --dist loadfile -m "not slow" tests/generation tests/consistency tests/training tests/replay tests/watch tests/experiments \
	tests/audit $(PYTEST)

# What `pip install '.[train]'` gives today, several GB with a torch for GPUs. Without vLLM: the newest that TRL takes is the pin.
.venv/lanes/newest: pyproject.toml | .venv/installed
	rm -rf $@ && $(PY) -m venv $@
	$@/bin/python -m pip install --quiet -e '.[train,lab,peft,tensorboard,dev]' || { rm -rf $@; exit 1; }

test-newest: .venv/lanes/newest
	CI= $</bin/python -m pytest -q -n $(TEST_JOBS) --dist loadfile -m "not slow" tests/generation tests/consistency tests/training tests/replay tests/watch tests/experiments \
	tests/audit tests/logs tests/curves tests/runs $(PYTEST)

# Executes all notebooks with their defaults and writes them back with their outputs.
notebooks: .venv/installed
	$(PY) -m tools.write_outputs

# JupyterLab on this checkout, opened at notebook 00, with the settings and the kernel of requirements/jupyter. It asks for the
# token that it prints, and only this machine can reach it. LAB_ARGS are more options, such as LAB_ARGS="--no-browser --port=8890".
# The notebooks in notebooks/ are read-only, so that running them leaves the checkout clean; `make lab EDIT=1` saves them.
LAB_PATHS := JUPYTER_CONFIG_PATH=requirements/jupyter JUPYTER_PATH=requirements/jupyter
SAVES_ALL := $(if $(EDIT),--ServerApp.contents_manager_class=jupyter_server.services.contents.largefilemanager.AsyncLargeFileManager)
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
lab: .venv/installed
	$(LAB_PATHS) OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m jupyter lab $(AS_ROOT) --ServerApp.root_dir=. \
	--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(SAVES_ALL) $(LAB_ARGS)

lint: .venv/installed
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

# The benchmarks that need no GPU, no downloaded weights and no checkout of TRL. They print their results and store nothing.
BENCHMARKS := attribution audit cost documented_verdicts error_rates

bench: .venv/installed
	@for name in $(BENCHMARKS); do echo "== $$name"; $(PY) -m benchmarks.$$name || exit 1; done

# The site, in build/site. Its tools are in a folder of their own. Building fetches nothing, and a warning is an error.
.venv/lanes/docs: requirements/docs.txt | .venv/installed
	rm -rf $@
	$(PY) -m uv --version >/dev/null 2>&1 && $(PY) -m uv pip install --quiet --python $(PY) --target $@ -r $< || \
	$(PY) -m pip install --quiet --target $@ -r $<

docs: .venv/lanes/docs
	$(PY) -m tools.rules && $(PY) -m tools.api
	PYTHONPATH=$(CURDIR)/$<:$(CURDIR) $(PY) -m sphinx -q -b html -W --keep-going -c docs . build/site
	@echo build/site/index.html

screenshots: .venv/installed
	PYTHONPATH=tests:tests/helpers $(PY) -m tools.screenshots

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
