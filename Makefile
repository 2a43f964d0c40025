# Two commands are enough: `make lab` to learn, `make test` before you push. `make help` lists the rest.

# Any Python can read the script that makes .venv; the script finds the one TensorFlow supports.
# Name one yourself with PYTHON=python3.12.
BOOTSTRAP = $(shell for name in python3 python python3.13 python3.12 python3.11; do \
	$$name -c '' 2>/dev/null && echo $$name && break; done)
ENVIRONMENT = $(or $(BOOTSTRAP),$(PYTHON),$(error no Python found on PATH: \
	install Python 3.11 to 3.13, then run the same command again)) tools/make_environment.py
PICK = $(if $(PYTHON),--python $(PYTHON)) $(ENV_ARGS)
CHECK_EXTRAS = test,docs,legacy
BIN := .venv/bin
PY := $(BIN)/python

# Three processes fill two cores, since tests wait for clusters and browsers of theirs. One notebook,
# or one file of tests, stays in one of them.
PARALLEL = -n $(JOBS) --dist loadfile
JOBS ?= 3
# When this command began: the last line of a run says how many seconds ago.
export DISTLAB_STARTED := $(or $(DISTLAB_STARTED),$(shell date +%s))
# tests/conftest.py says which files begin.
TESTS = $(PY) -m pytest tests $(PARALLEL) --no-loadscope-reorder
NOTEBOOKS = notebooks exercises solutions
# Tests that train nothing and start no cluster: `make quick`.
QUICK = test_architecture test_batching test_errors docs/test_teaching_page \
	course/test_course_map course/test_course_page course/test_show course/checks/test_checks_vocabulary \
	course/checks/test_faults course/checks/test_plain_values course/checks/test_progress \
	cluster/test_spec authoring/test_compare authoring/test_lint \
	autograder/test_answers autograder/test_gradebook autograder/test_pages autograder/test_submissions
# What `make nightly` runs, each to its end.
NIGHT = full-marks mutants chaos regression-cold regression-tampered nbgrader other-packages tables \
	random-models random-steps as-on-gpus portable versions newest oldest
# What people bring besides their model: `make other-packages`.
OTHER_PACKAGES = bayesflow grain keras-hub keras-rs keras-tcn keras-tuner scikeras tensorboard \
	tensorflow-probability tensorflow-text tf-keras "ray[train]"
# Which families of the zoo are trained: all, or the core, a third that uses each mechanism of the rule.
ZOO ?= all
# Further arguments for pytest, for `distlab lab`, and for the tools of these names.
TEST_ARGS ?=
LAB_ARGS ?=
CHAOS_ARGS ?=
VERSIONS_ARGS ?=
MODELS_ARGS ?=
STEPS_ARGS ?=
PACKAGES_ARGS ?=
MUTANTS_ARGS ?=

# $(call stage,name,command): says what runs, and how it ended after how many seconds.
stage = @printf '\n== %s\n' '$(1)'; start=$$(date +%s); if $(2); \
	then printf '== %s: done in %s s\n' '$(1)' $$(( $$(date +%s) - start )); \
	else printf '== %s: failed in %s s\n' '$(1)' $$(( $$(date +%s) - start )); $(END); fi
# Ends make before it prints an error of its own below the last line, which says what failed: no
# shell speaks of a process that this signal ended. The status is 141. With -k make goes on.
END = $(if $(findstring k,$(firstword -$(MAKEFLAGS))),,kill -s PIPE $$PPID;) exit 1

.DEFAULT_GOAL := help
.PHONY: help lab test check quick nightly env env-lab lint types collect notebooks notebooks-check \
	tests regression regression-cold regression-tampered portable no-onednn sse41 avx2 busy nbgrader other-packages \
	support-matrix zoo fit-check random-models random-steps as-on-gpus tables \
	training-cost bench chaos full-marks mutants versions newest oldest format docs minutes voice errors figures map constraints clean

help:  ## list these targets
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "make %-20s %s\n", $$1, $$2}' Makefile

##@ Learn

lab: env-lab  ## make .venv if needed, and open the course in my-lab/, your own copy
	@$(BIN)/distlab lab my-lab $(LAB_ARGS) || { $(END); }

##@ Before you push

test: ZOO = core
test: env  ## rules, types, notebooks against their sources, every test (all of the zoo: ZOO=all)
	@$(PY) -m tests.support.browser \
		&& $(MAKE) --no-print-directory lint types notebooks-check tests ZOO=$(ZOO) || { $(END); }

check: env  ## what CI runs: the suite with all of the zoo, all notebooks run again, the site
	@$(MAKE) --no-print-directory test regression docs ZOO=all || { $(END); }
	@printf '\n== every check passed in %s s\n' $$(( $$(date +%s) - $(DISTLAB_STARTED) ))

quick: env  ## rules, types, and the tests that train nothing: under a minute
	$(call stage,quick,$(PY) -m ruff check . && $(PY) -m mypy && $(PY) -m distlab.authoring lint \
		&& $(PY) -m pytest -q $(PARALLEL) \
		$(QUICK:%=tests/%.py) $(TEST_ARGS))

lint: env  ## ruff: rules and layout
	$(call stage,lint,$(PY) -m ruff check . && $(PY) -m ruff format --check .)

types: env  ## mypy, strict
	$(call stage,types,$(PY) -m mypy)

collect: env  ## every test can be imported: found in seconds, not at the end of a long run
	@$(PY) -m pytest tests -qq --collect-only > .pytest_collected.txt \
		|| { cat .pytest_collected.txt; exit 1; }
	@rm .pytest_collected.txt

tests: env  ## all tests of the library and its tools (TEST_ARGS="-k doctor")
	@printf '\n== tests\n'; DISTLAB_ZOO=$(ZOO) $(TESTS) $(TEST_ARGS) || { $(END); }

# Its own environment: distlab needs nothing of what nbgrader brings.
.venv-nbgrader/bin/nbgrader: | env
	$(PY) -m venv .venv-nbgrader
	.venv-nbgrader/bin/python -m pip install --quiet nbgrader==0.9.6

# Here distlab is installed beside the packages that people bring.
.venv-packages/complete: | env
	$(PY) -m venv .venv-packages
	.venv-packages/bin/python -m pip install --quiet --editable ".[data]" $(OTHER_PACKAGES)
	touch $@

format: env  ## let ruff lay out the code and repair what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

##@ Notebooks and site

notebooks: env  ## build and execute the notebooks whose sources changed
	$(call stage,notebooks,$(PY) -m distlab.authoring build)

notebooks-check: env  ## every notebook is what its source builds, and keeps the rules of notebooks
	$(call stage,notebooks against their sources,$(PY) -m distlab.authoring check \
		&& $(PY) -m distlab.authoring lint)

regression: env  ## run all notebooks again and compare every output
	@printf '\n== regression of the notebooks\n'; $(PY) -m pytest -p tests.support.fresh_home \
		-p tests.support.reporting -p distlab.authoring.regression --nbval $(PARALLEL) $(NOTEBOOKS) $(TEST_ARGS) || { $(END); }

docs: env  ## build the site into build/site (the notebooks are its pages)
	@rm -rf build/docs build/site && mkdir -p build/docs && cp -R docs notebooks exercises build/docs/
	@$(PY) tools/site_pages.py build/docs
	$(call stage,docs,$(PY) -m sphinx -W --keep-going -q -c docs -b html build/docs build/site)

minutes: env  ## how long each lesson and its exercise take, by words and lines of code (LESSONS="10 12")
	@$(PY) -m distlab.authoring minutes $(LESSONS)

voice: env  ## how the sentences of lessons and pages sound, in numbers (LESSONS="10 README")
	@$(PY) -m distlab.authoring voice $(LESSONS)

errors: env  ## print every error in its three parts, to be read as one text (OF=training: of one wing)
	@$(PY) tools/error_list.py $(OF)

figures: env  ## put all figures of the notebooks on one page, build/figures.html
	$(PY) tools/figure_sheet.py

map: env  ## write what comes from code and tables: the map with its minutes, the decision card, two pictures
	$(PY) tools/write_tables.py

##@ Through the night

nightly: env  ## what takes hours: many seeds, kills, other processors and versions, every table
	@for target in $(NIGHT); do $(MAKE) --no-print-directory $$target || failed="$$failed $$target"; done; \
	if [ "$$failed" ]; then printf '\n== failed in the night:%s\n' "$$failed"; $(END); fi; \
	printf '\n== the night passed in %s s\n' $$(( $$(date +%s) - $(DISTLAB_STARTED) ))

regression-cold:  ## the regression, each notebook in a process of its own making
	@DISTLAB_WARM=0 $(MAKE) --no-print-directory regression || { $(END); }

regression-tampered: env  ## tamper with every notebook, and hold that the regression notices
	$(call stage,tampered notebooks,$(PY) tools/tamper.py)

portable: no-onednn sse41 avx2 busy  ## the suite and all notebooks, as other processors and a busy machine run them

# Another processor takes other kernels, which round differently: oneDNN can be left out, or held
# to older instructions. Held so, it stops a process that computes in bfloat16, which TensorFlow
# gives it because this processor has bfloat16; an older one would take TensorFlow's own kernels.
WITHOUT_BFLOAT16 = TEST_ARGS="-m 'not bfloat16' --ignore-glob='*/07_mixed_precision.ipynb'"

no-onednn:
	@TF_ENABLE_ONEDNN_OPTS=0 $(MAKE) --no-print-directory tests regression || { $(END); }

sse41:
	@ONEDNN_MAX_CPU_ISA=SSE41 $(MAKE) --no-print-directory tests regression $(WITHOUT_BFLOAT16) || { $(END); }

avx2:
	@ONEDNN_MAX_CPU_ISA=AVX2 $(MAKE) --no-print-directory tests regression $(WITHOUT_BFLOAT16) || { $(END); }

# Two loops beside the tests, which end with the shell that started them.
busy:
	@for loop in 1 2; do (while kill -0 $$$$ 2>/dev/null; do :; done) & done; \
	$(MAKE) --no-print-directory tests regression || { $(END); }

nbgrader: env .venv-nbgrader/bin/nbgrader  ## run nbgrader's own autograde over two exercises
	$(call stage,nbgrader,DISTLAB_NBGRADER=.venv-nbgrader/bin/python \
		$(PY) -m pytest tests/authoring/test_nbgrader_autograde.py $(TEST_ARGS))

other-packages: env .venv-packages/complete  ## train with loaders, tuners and layers of other packages, and under Ray
	$(call stage,other packages,.venv-packages/bin/python tools/other_packages.py $(or $(PACKAGES_ARGS),--check) \
		&& DISTLAB_RAY=$(CURDIR)/.venv-packages/bin/python $(PY) -m pytest -q tests/cluster/test_engines.py -k of_ray)

mutants: env  ## change one thing in each solution, and hold that its check notices (MUTANTS_ARGS="--only NAME")
	$(call stage,mutants,$(PY) tools/mutate_solutions.py --cost pure tensorflow $(MUTANTS_ARGS) \
		&& $(PY) tools/mutate_solutions.py --cost cluster --most 4 $(MUTANTS_ARGS))

full-marks: env  ## every solution on many seeds: full marks; every exercise as handed out: none
	$(call stage,full marks,DISTLAB_SEEDS=20 $(PY) -m pytest tests/course/checks/test_exercises.py \
		$(PARALLEL) $(TEST_ARGS))

chaos: env  ## kill the tasks of trainings 50 times at random steps, and hold that they recover
	$(call stage,chaos,$(PY) tools/chaos.py $(CHAOS_ARGS))

random-models: env  ## train 200 models that a seed draws, in float64, on one device and on replicas
	$(call stage,random models,$(PY) tools/random_models.py $(MODELS_ARGS))

random-steps: env  ## train 300 steps, layers and callbacks that a seed draws: equal to plain Keras, or refused by name
	$(call stage,random steps,$(PY) tools/random_steps.py $(STEPS_ARGS))

as-on-gpus: env  ## the zoo and the table of cases, with batches that TensorFlow brings to each device
	$(call stage,as on GPUs,DISTLAB_BROUGHT=1 $(PY) -m pytest tests/zoo \
		tests/training/test_distribute_table.py $(PARALLEL) $(TEST_ARGS))

tables: env  ## measure the support matrix, the zoo and the combinations of "Is your fit right?" again, and compare
	$(call stage,tables,$(PY) tools/support_matrix.py --check && $(PY) tools/zoo.py --check \
		&& $(PY) tools/fit_check.py --check)

versions: env  ## the parity tests and the notebooks with each TensorFlow and Keras (VERSIONS_ARGS="--only 2.19"; hours)
	$(call stage,versions,$(PY) tools/versions.py $(VERSIONS_ARGS))

newest: env  ## the suite and the notebooks with the newest of all packages, as pip takes them
	$(call stage,newest,$(PY) tools/versions.py --only newest)

oldest: env  ## the suite and the notebooks with the lowest versions that pyproject.toml declares
	$(call stage,oldest,$(PY) tools/versions.py --only oldest)

##@ Measure, and write the tables

support-matrix: env  ## run every cell of the support matrix, and write docs/support_matrix.md
	$(call stage,support matrix,$(PY) tools/support_matrix.py --write)

zoo: env  ## train every model family of the zoo on one device and on replicas, and write docs/zoo.md
	$(call stage,zoo,$(PY) tools/zoo.py --write)

fit-check: env  ## run every combination of answers of "Is your fit right?", and write docs/fit_check.md
	$(call stage,fit check,$(PY) tools/fit_check.py --write)

training-cost: env  ## predict published training runs, print every miss, and write docs/training_cost.md
	$(call stage,training cost,$(PY) tools/training_cost_page.py --write)

bench: env  ## time training against its peers, and weigh its memory (about 20 minutes, quiet machine)
	$(call stage,benchmarks,$(PY) benchmarks/fit.py && $(PY) benchmarks/memory.py)

##@ The environment

env:  ## make .venv with everything the checks need
	@$(ENVIRONMENT) --extras $(or $(EXTRAS),$(CHECK_EXTRAS)) $(PICK) || { $(END); }

env-lab:
	@$(ENVIRONMENT) --extras $(or $(EXTRAS),lab) $(PICK) || { $(END); }

constraints:  ## renew constraints.txt, keeping its versions (all newer: UPGRADE=--upgrade); needs uv
	uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--no-header --no-annotate --no-emit-index-url $(UPGRADE) \
		--extra test --extra docs --extra legacy pyproject.toml --output-file constraints.txt

clean:  ## remove what the checks leave behind (.venv and my-lab stay)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +
