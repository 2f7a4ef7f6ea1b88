# make demo    diagnose a training program that stalls, on this machine, in under a minute
# make demo-llm  the same, driven by a language model (yours, or fixed rules behind the same protocol)
# make demo-alert  an alert, from Alertmanager to a tracker, with the server killed on the way
# make demo-cache  a job whose data is pushed out of the page cache: diagnosed, cured by hybrid I/O, looked at again (root)
# make test    unit tests, and every tool once on this kernel (as root)
# make test-all  make test, live tests, one stock kernel in a VM, and of the files of thorough tests and of live tests that must
#                run alone a third (another one each day; all with THIRD=all)
# make test-kernels  the kernel matrix: Debian's 5.10, 6.1 and 6.12 in VMs, and this host; writes the table in docs/kernels.md
# make conformance  the official conformance runner of MCP against the server; writes docs/conformance.md
# make docs    the command reference (docs/commands.md), written from the program
# make bench-faults [ONLY=p01,s] [REPEATS=n] [DIAGNOSERS=rules,...]  real faults with known causes, diagnosed while they last
#              (root; see docs/benchmark.md)
# make fuzz [FUZZ_RUNS=1000000]  every parser with so many inputs, guided by coverage
# make wheels [DRAFT=--draft]  the files of a release, below dist/: wheels, bill of materials, hashes (docs/upgrade.md)
# make test-packages [SUITES=bookworm]  the wheel of dist/ in bare Debian roots: installed, and a stall diagnosed (root, network;
#              docs/upgrade.md)
# make release-check [DRAFT=--draft]  both: what has to pass before a release
# make lint types bench clean
#
# The first of them sets the machine up: system packages (as root), a private .venv, the BPF objects.
# Stamps in .setup/ keep the second from doing it again.

SHELL := /bin/sh
# Tests start hundreds of processes; without cached bytecode each would compile the program.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:
.PHONY: demo demo-llm demo-alert demo-cache test test-all test-thorough test-old-kernel test-kernels
.PHONY: fuzz setup build lint types docs conformance bench bench-faults wheels test-packages release-check clean

VENV := .venv
BIN := $(VENV)/bin
WORKERS := $(shell echo $$((2 * $$(nproc))))
PACKAGES := agent_server bpf knowledge_base prompts tools
BPF_SOURCES := $(wildcard bpf/*.c bpf/*.h bpf/*/*.c bpf/*/*.h bpf/build.py bpf/layout_generator.py)
HYBRID_SOURCES := $(wildcard tools/hybrid_io/src/* tools/hybrid_io/build.py)

demo: build
	@$(BIN)/python examples/demo.py

demo-llm: build
	@$(BIN)/python examples/demo.py --llm

demo-alert: build
	@$(BIN)/python examples/alert_demo.py

demo-cache: build
	@$(BIN)/python examples/cache_demo.py

# A failed test is repeated alone, at most twice, since live tests measure a machine that others may be using for a while. All
# runs are shown.
slowest = --durations 25 --durations-min 1
repeat = $(BIN)/python -m pytest $(1) --numprocesses 0 --last-failed --last-failed-no-failures none
run_tests = $(2) $(BIN)/python -m pytest $(slowest) $(1) || { test $$? -eq 1 && { $(repeat) || $(repeat); }; }

# Workers share the processors: more threads within each only wait for one another.
pooled = POLARS_MAX_THREADS=1
unit = --numprocesses $(WORKERS) --dist loadfile --ignore tests/live --ignore tests/kernels/inside
matrix = PYTHONPATH=tests $(BIN)/python -m kernels.matrix
tools_on_kernel = $(matrix) $(1) -- tests/kernels/inside/test_tools_on_kernel.py $(2)
twice = $(tools_on_kernel) || { echo "failed: repeated once"; $(tools_on_kernel); }

# Two workers per processor, since many tests wait.
test:
	@$(MAKE) --no-print-directory --jobs 3 build .setup/test-packages .setup/bytecode
	$(call run_tests,$(unit) -m 'not thorough',$(pooled))
	$(call twice,--host,-k "not no_kprobes")

# There is no time for all thorough tests, and all live ones, each time: a third of their files a day, all with THIRD=all. The
# conformance runner is always among them. Every worker collects all files that it is given.
THIRD := $(shell echo $$(($$(date +%s) / 86400 % 3)))
of_third = awk -v third=$(THIRD) 'third == "all" || NR % 3 == third || /conformance/'
thorough = $(shell grep -rl --include 'test_*.py' --exclude-dir live 'mark[.]thorough' tests | sort | $(of_third))
live = $(shell ls tests/live/test_*.py | $(of_third))

# Live tests that others do not disturb run side by side; the rest measures what a neighbour would distort. Between them, all
# that no neighbour disturbs shares the processors: the emulated guest leaves half of them idle.
test-all: test .setup/torch
	$(call run_tests,tests/live --numprocesses 3 -m 'beside and not thorough')
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-old-kernel test-thorough types
	$(call run_tests,$(live) --numprocesses 2 -m 'beside and thorough')
	$(call run_tests,$(live) -m 'not beside')

# They take what the guest leaves, whose time passes while it waits for a processor.
test-thorough: build .setup/test-packages .setup/conformance/installed .setup/fuzz .setup/accessibility/installed
	$(call run_tests,--numprocesses $(WORKERS) --dist loadfile $(thorough) -m thorough,$(pooled) chrt --idle 0)

# The guest is emulated, and slow: of the privileges only the least are tried in it, and its recordings are judged here;
# `make test-kernels` tries all, in the guests.
test-old-kernel: build .setup/test-packages
	$(call twice,--kernel 5.10 --judge-here capabilities --limit 900 --if-possible,-k capabilities)

FUZZ_RUNS ?= 1000000
fuzz: build .setup/fuzz
	FUZZ_RUNS=$(FUZZ_RUNS) $(BIN)/python -m pytest tests/fuzz --numprocesses $(shell nproc)

test-kernels: build .setup/test-packages
	$(matrix) --all --host --results tests/kernels/results.json
	PYTHONPATH=tests $(BIN)/python -m kernels.table

DRAFT :=
wheels: .setup/release/installed
	.setup/release/bin/python -m deploy.release $(DRAFT)

# Debian releases whose Python is new enough; others are refused.
SUITES := bookworm,trixie
PUBLISHED = $(wildcard dist/whystall-*_$(shell uname -m).whl)
test-packages: setup .setup/helm/helm_python
	@test -n "$(PUBLISHED)" || { echo "whystall: no wheel in dist/: make wheels first" >&2; exit 1; }
	@command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
	WHYSTALL_WHEEL=$(PUBLISHED) SUITES=$(SUITES) PYTHONPATH=.setup/helm $(BIN)/python -m pytest -q -s tests/packages

release-check:
	@$(MAKE) --no-print-directory wheels
	@$(MAKE) --no-print-directory test-packages

setup: .setup/venv

build: setup .setup/bpf .setup/hybrid

lint: setup
	$(BIN)/ruff check

# mypy does not follow the finder of an editable install: links give it the import root. It yields to the guest, too.
types: setup
	@mkdir -p $(VENV)/types/whystall
	@for package in $(PACKAGES); do ln -sfn ../../../$$package $(VENV)/types/whystall/$$package; done
	MYPYPATH=$(VENV)/types chrt --idle 0 $(BIN)/mypy $(PACKAGES:%=-p whystall.%)
	MYPYPATH=$(VENV)/types:examples:tests/live/workloads $(BIN)/mypy examples/*.py tests/live/workloads/*.py deploy/release/*.py

docs: setup
	$(BIN)/python docs/generate_commands.py

conformance: setup .setup/conformance/installed
	PYTHONPATH=tests $(BIN)/python -m conformance.report

bench: build
	$(BIN)/python -m benchmarks.run

# VM=6.1: what this kernel lacks runs in a guest with that one.
REPEATS := 1
DIAGNOSERS := rules,model,mcp,most_common,largest_finding,pyspy_top
VM :=
bench-faults: build .setup/torch .setup/py-spy/bin/py-spy $(if $(VM),.setup/test-packages)
	$(BIN)/python -m benchmarks.faults.run --only '$(ONLY)' --repeats $(REPEATS) --diagnoser '$(DIAGNOSERS)' --vm '$(VM)'

clean:
	rm -rf $(VENV) .setup build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf .mypy_cache .ruff_cache .pytest_cache
	find $(PACKAGES) -name '*.bpf.o' -delete
	rm -rf tools/hybrid_io/objects

# Without root this leaves no stamp, says in one line what is missing, and lets the rest go on.
.setup/packages: .ci/install-packages
	@mkdir -p $(@D)
	@.ci/install-packages "$$(.ci/find-python $(PYTHON) 2>/dev/null)" && touch $@ || test $$? -eq 3

.setup/test-packages: .ci/install-test-packages .ci/install-test-pythons | .setup/packages
	@mkdir -p $(@D)
	@.ci/install-test-packages && touch $@ || test $$? -eq 3

.setup/venv: pyproject.toml | .setup/packages
	@mkdir -p $(@D)
	python=$$(.ci/find-python $(PYTHON)) && { test -x $(BIN)/pip || "$$python" -m venv --clear $(VENV); }
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

# Compiles all modules once, while others are downloaded: else each worker compiles them. Errors are left to the tests.
.setup/bytecode: .setup/venv
	@$(BIN)/python -m pytest --collect-only -qq --ignore tests/live --ignore tests/kernels/inside >/dev/null || true
	@touch $@

# The compiler and the tools of a release, at exact versions.
.setup/release/installed: deploy/release/requirements.txt | .setup/venv
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# Helm's engine as a library. Large, and apart from the program's packages.
.setup/helm/helm_python: | .setup/venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .setup/helm 'helm-python-sdk>=0.2,<1'

# Real training jobs for the live tests; large, so only they wait for it.
.setup/torch: .setup/venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev,torch]"
	@touch $@

.setup/fuzz: .setup/venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev,fuzz]"
	@touch $@

# A diagnoser to compare with. Apart from the program's packages, since whystall would use it where it is installed.
.setup/py-spy/bin/py-spy: | .setup/venv
	$(BIN)/pip install --quiet --disable-pip-version-check --target .setup/py-spy 'py-spy>=0.4,<1'

# The runner needs a newer Node than many distributions have: both come from npm, at the versions named there.
.setup/conformance/installed: tests/conformance/package.json | .setup/test-packages
.setup/accessibility/installed: tests/accessibility/package.json | .setup/test-packages
.setup/conformance/installed .setup/accessibility/installed:
	@mkdir -p $(@D)
	@cp $< $(@D)/package.json
	npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --loglevel error
	@touch $@

.setup/bpf: $(BPF_SOURCES) .setup/venv
	@if command -v clang >/dev/null; \
	then $(BIN)/python -m whystall.bpf.build && touch $@; \
	else echo "whystall: no clang, so no BPF objects are built; going on without" >&2; fi

.setup/hybrid: $(HYBRID_SOURCES) .setup/venv
	@if command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; \
	then $(BIN)/python -m whystall.tools.hybrid_io.build && touch $@; \
	else echo "whystall: no C compiler, so hybrid I/O is not built; going on without" >&2; fi
