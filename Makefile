# `make demo` and `make test` set up what they need by themselves; a second run starts at once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Two test processes of one thread each fill the two cores better than one process of two threads.
JOBS ?= 2

.PHONY: demo compare test test-slow sanitize native bench docs docs-serve format clean help

help:
	@echo "make demo       make a small dataset, train FLARE on it, write runs/demo/report.html"
	@echo "make compare    FLARE and the baselines on one small dataset, three seeds: about an hour"
	@echo "make test       lint, types and the default test suite"
	@echo "make test-slow  the slow tests"
	@echo "make native     build the CPU kernels now rather than on first use"
	@echo "make sanitize   the kernel tests under address and undefined-behaviour sanitizers"
	@echo "make bench      speed and memory, an hour on a quiet machine; tables and plots in docs/benchmarks"
	@echo "make docs       the documentation as a site, in build/site; make docs-serve shows it while you write"
	@echo "make format     format the code"
	@echo "make clean      remove .venv and everything made by demo and tests"

.venv/package: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4) and "flare needs Python 3.11.4 or newer; set PYTHON=...")'
	@echo "Setting up .venv (once, about a minute) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/ready: .venv/package
	@echo "Installing what development needs (once, about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/package
	@$(BIN)/flare data make elasticity --samples 1100 --test-samples 100 --out data/elasticity-demo
	@$(BIN)/flare train --preset demo --out runs/demo --if-exists resume

compare: .venv/ready
	@$(BIN)/flare data make darcy --resolution 13 --grid node --samples 160 --test-samples 40 --out data/darcy-small
	@$(BIN)/flare compare --preset small --out runs/compare

# A test that hangs for a quarter of an hour prints its stack and fails; the others continue.
test: .venv/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test-slow: .venv/ready
	@$(BIN)/pytest -m slow

native: .venv/package
	@$(BIN)/python -m flare.mixer.native

# The sanitizer runtime must be loaded before Python's libraries. Leaks of Python itself are not checked.
sanitize: .venv/ready
	@FLARE_CACHE=build/sanitize FLARE_CXXFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -g -O1" \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0 \
	OMP_NUM_THREADS=2 $(BIN)/pytest -m "kernels and not slow"

bench: .venv/ready
	@echo "Start-up times ..."
	@$(BIN)/python benchmarks/startup.py
	@echo "Speed (about 20 minutes) ..."
	@$(BIN)/python benchmarks/native.py
	@echo "Memory (about 5 minutes; wants 16 GB) ..."
	@$(BIN)/python benchmarks/memory.py
	@echo "Accuracy ..."
	@$(BIN)/python benchmarks/accuracy.py
	@echo "Solvers ..."
	@$(BIN)/python benchmarks/solvers.py
	@$(BIN)/python benchmarks/lpbf.py
	@$(BIN)/python benchmarks/cars.py
	@echo "Long sequences (about 20 minutes) ..."
	@$(BIN)/python benchmarks/sequences.py
	@echo "Ten million points, and the planner (about half an hour) ..."
	@$(BIN)/python benchmarks/stream.py
	@$(BIN)/python benchmarks/plan.py
	@echo "Exported files, and the page in a browser (some minutes) ..."
	@$(BIN)/python benchmarks/export.py
	@$(BIN)/python benchmarks/view.py
	@$(BIN)/python benchmarks/plot.py
	@$(BIN)/python benchmarks/table.py

docs: .venv/ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

docs-serve: .venv/ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: .venv/ready
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf .venv data/elasticity-demo runs/demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
