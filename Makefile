# make run     set everything up, Spark included, and serve an example on this machine until Ctrl-C; PORT=9090 elsewhere
# make test    set everything up and run every check and test
# make install the set-up alone; make spark adds Spark; make bench the figures (BENCH="--only lease --json"); make lock new pins
# make planted plants known bugs, one at a time, and sees that the tests catch each

# python3, or the system's where that one was built without optimisation, as pyenv does unless told
# otherwise: the same files take a fifth less time with the other.
PYTHON ?= $(shell python3 -c 'import sys, sysconfig; \
	built = sysconfig.get_config_var("CONFIG_ARGS") or ""; \
	sys.exit(sys.version_info < (3, 11) or "--enable-optimizations" not in built)' \
	&& echo python3 \
	|| { /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo /usr/bin/python3; } || echo python3)
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JAVA := "$${JAVA_HOME:+$$JAVA_HOME/bin/}java"
NO_JAVA := there is no Java, and it could not be installed: all works but the pipeline, and tests of it fail
SYSTEM := strace e2fsprogs chromium
LOCK := $(BIN)/pip-compile --quiet --upgrade --no-header --generate-hashes --strip-extras \
	--allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options

.DEFAULT_GOAL := help
.PHONY: help install dev spark run test planted lint format bench lock clean always

help:
	@sed -n 's/^# //p' Makefile

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "EbbMQ needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A compiler and Python.h, for what is in C: without them all is Python.
$(VENV)/compiler.stamp: | $(VENV)/bin/python
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v cc >/dev/null \
		&& $(BIN)/python -c 'import os, sysconfig, sys; \
			sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }; then \
		{ apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev \
			|| { apt-get update -qq \
			&& apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev; }; } \
			>/dev/null 2>&1 || echo "no compiler could be installed: all of EbbMQ will be Python"; \
	fi
	@touch $@

$(VENV)/run.stamp: requirements/run.lock pyproject.toml hatch_build.py $(wildcard src/ebbmq/*.[ch]) \
		$(VENV)/compiler.stamp | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements/run.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@# Where Python is told not to keep what it compiled, every start would compile it again.
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -c 'import sys; from ebbmq.speedups import is_compiled; sys.exit(not is_compiled)' \
		|| echo "src/ebbmq/_speedups.c was not compiled (pip -v says why): one message takes a quarter longer"
	@touch $@

$(VENV)/dev.stamp: requirements/dev.lock $(VENV)/run.stamp
	@echo "installing what tests, checks and the build of Spark need"
	$(PIP) install --require-hashes -r requirements/dev.lock
	@touch $@

# Spark comes as source: it is built with the pinned tools of dev.lock, without fetching others.
$(VENV)/spark.stamp: requirements/spark.lock $(VENV)/dev.stamp
	@if ! $(JAVA) -version >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Java, which Spark needs"; \
		{ apt-get install -y -qq openjdk-17-jre-headless \
			|| { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; }; } >/dev/null 2>&1 || true; \
	fi
	@echo "building Spark, once: this takes a minute or two"
	$(PIP) install --require-hashes --no-build-isolation -r requirements/spark.lock
	@touch $@

# Which Java there is; as old as the change to it.
$(VENV)/java.stamp: $(VENV)/spark.stamp always
	@{ $(JAVA) -version 2>&1 || true; } | grep -v '^Picked up' >$@.new || true
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
	@$(JAVA) -version >/dev/null 2>&1 || echo "$(NO_JAVA)"

# Java starts in half the time with what it made of Spark's classes before; not with what another made.
$(VENV)/classes.stamp: tools/classes.py $(VENV)/spark.stamp $(VENV)/java.stamp
	@if $(JAVA) -version >/dev/null 2>&1; then \
		$(BIN)/python tools/classes.py >/dev/null \
			|| echo "the classes of Spark could not be kept: it starts without them, in twice the time"; \
	fi
	@touch $@

# Fault injection (strace), power cuts (mkfs.ext4) and pages in a browser (chromium): tests of what is
# missing skip with a reason.
$(VENV)/system.stamp: | $(VENV)/bin/python
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& ! { command -v strace && command -v mkfs.ext4 && command -v chromium; } >/dev/null; then \
		apt-get install -y -qq --no-install-recommends $(SYSTEM) >/dev/null 2>&1 \
			|| { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SYSTEM); } >/dev/null 2>&1 \
			|| echo "could not install all of $(SYSTEM): some tests will be skipped"; \
	fi
	@# An emulator of Azure Blob Storage: only npm has one that installs by name.
	@if command -v npm >/dev/null; then \
		mkdir -p $(VENV)/azurite && cp tests/azurite/package*.json $(VENV)/azurite \
			&& npm ci --prefix $(VENV)/azurite --no-audit --no-fund --ignore-scripts >/dev/null 2>&1 \
			|| echo "Azurite could not be installed: the tests of object devices on Azure will be skipped"; \
	fi
	@# Only its checker of alert rules is wanted, not a server that starts: so it is not installed.
	@if command -v apt-get >/dev/null && ! command -v promtool >/dev/null; then \
		cd $(VENV) && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } \
			>/dev/null 2>&1 && dpkg-deb -x prometheus_*.deb system && rm prometheus_*.deb \
			|| echo "promtool could not be fetched: the tests of the alert rules will be skipped"; \
	fi
	@touch $@

install: $(VENV)/run.stamp

dev: $(VENV)/dev.stamp $(VENV)/spark.stamp

spark: $(VENV)/classes.stamp

# Messages do not depend on the pipeline: without it they are served all the same.
run: install
	@$(MAKE) --no-print-directory spark || echo "Spark could not be set up: all works but the pipeline"
	@$(BIN)/ebbmq serve --data data --config deploy/example.toml --http-port $(PORT) --example

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint $(VENV)/system.stamp $(VENV)/classes.stamp
	PATH="$(CURDIR)/$(VENV)/system/usr/bin:$$PATH" $(BIN)/pytest -n auto --maxprocesses=4 --dist loadfile \
		--no-loadscope-reorder

planted: dev $(VENV)/system.stamp
	PATH="$(CURDIR)/$(VENV)/system/usr/bin:$$PATH" $(BIN)/python -m tests.planted

bench: dev
	$(BIN)/python -m bench --out bench/results/latest.json $(BENCH)

lock: dev
	$(LOCK) --extra demo --extra server --extra client --extra feed -o requirements/run.lock pyproject.toml requirements/build.in
	$(LOCK) -c requirements/run.lock --extra demo --extra server --extra client --extra feed --extra sql \
		--extra grid --extra object --extra bpmn --extra bench --extra test --extra dev \
		-o requirements/dev.lock pyproject.toml requirements/build.in
	$(LOCK) -c requirements/dev.lock --extra spark -o requirements/spark.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f src/ebbmq/*.so
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
