# SPDX-License-Identifier: BSD-3-Clause
#
# `make help` lists the commands. Everything is built into .venv and build/.

PYTHON ?= python3
# Another version: make build TORCH="torch==2.11.0 --index-url ...". It stays until another one is given.
ifndef TORCH
TORCH  := $(or $(shell cat .venv/.wanted 2>/dev/null),torch==2.13.0)
endif
# The kernels are compiled for this kind of GPU. For other kinds the driver compiles them on load.
export SHMCOLL_CUDA_ARCHS ?= 90
JOBS   ?= $(shell nproc)
ONLY   ?=

VENV := .venv
PY   := $(VENV)/bin/python

# Debian's names. The first list builds, the second tests; libnuma (used where it is found), liburing
# and systemtap-sdt-dev (probes) are optional, and shmcoll.build_info() says what there is. tcc compiles the planted faults of the models,
# a hundred programs, 50 times faster than gcc, which compiles them if there is no tcc.
PACKAGES_BUILD := build-essential cmake libnuma1 liburing-dev systemtap-sdt-dev
PACKAGES_TEST  := ninja-build pkg-config libgtest-dev spin relacy-dev tcc clang-format codespell gdb iproute2 mount
PACKAGES_AARCH64 := gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user \
                    googletest

# Looks at the system's Python, which may not be installed yet.
PYTHON_LACKS = $(shell if command -v $(PYTHON) >/dev/null; then $(PYTHON) tests/support/python_lacks.py; \
                 else echo $(PYTHON)-dev $(PYTHON)-venv; fi)

CORE_SOURCES := $(shell find src CMakeLists.txt -type f ! -name '.*' ! -name '*~')

.PHONY: help build test docs prepared sanitizers models hosts hosts-kills demo frameworks bench bench-core packages packages-test clean distclean fmt soak fuzz fuzz-hosts fuzz-store test-long test-torch clients fuzz-peer huge stress cuda-kills browser wheel wheels gpu bare-machine release deb free-threaded FORCE

help:
	@echo "make build    installs missing system packages, creates .venv, builds shmcoll into it"
	@echo "make test     all tests of the default lane (docs/internals/testing.md)"
	@echo "make test ONLY=name    the lanes, and within them the tests, whose name contains it"
	@echo "make docs     the documentation site, into build/site"
	@echo "make test-long    tests that the default lanes leave out without a sanitizer, with a slice of each left there"
	@echo "make test-torch    torch's own distributed tests with 3, 4 and 8 ranks (make test: with 4)"
	@echo "make demo     trains a small network with shmcoll and with gloo, and compares both"
	@echo "make frameworks    examples of Accelerate, Lightning, DeepSpeed, vLLM, ... under gloo and shmcoll; it"
	@echo "              downloads some gigabytes into build/frameworks (ONLY=name: one of examples/frameworks)"
	@echo "make bench    all benchmarks, and which goals of the project are met; at most half an hour"
	@echo "make bench ONLY=name    the parts whose name contains it (benchmarks/goals.py --list)"
	@echo "              only shmcoll compared with gloo: .venv/bin/python -m shmcoll bench"
	@echo "make gpu      everything that needs a GPU; 12 minutes (docs/internals/cuda/testing.md; ONLY=bench: one part)"
	@echo "make gpu NEXT=1 GPU_SECONDS=200    the most important missing part of this commit's report, within 200 s"
	@echo "make sanitizers    all C tests under both sanitizers"
	@echo "make soak     random kills for a long time (SHMCOLL_SOAK_MINUTES, SHMCOLL_SOAK_ROUNDS, SHMCOLL_SOAK_SEED)"
	@echo "make clients  longer user programs: compilers, more ranks, two hosts"
	@echo "make fuzz     random programs against the oracle (SHMCOLL_FUZZ_PROGRAMS, SHMCOLL_FUZZ_SEED)"
	@echo "make fuzz-hosts    the same with all ranks on several hosts, 3000 programs"
	@echo "make fuzz-peer    a peer that writes wrong values into shared memory, for ten minutes (SHMCOLL_LIES_SECONDS, SHMCOLL_LIES_SEED)"
	@echo "make fuzz-store    20000 groups over a store that gives wrong answers (SHMCOLL_STORE_FUZZ, SHMCOLL_STORE_FUZZ_SEED)"
	@echo "make cuda-kills    kills ranks with a stand-in GPU, 500 times (SHMCOLL_CUDA_KILLS)"
	@echo "make models   the protocol models, with all planted faults of each"
	@echo "make hosts    groups over several hosts, which this machine plays; also hosts that die (needs root)"
	@echo "make hosts-kills    1000 kills in jobs on several hosts (SHMCOLL_KILLS, SHMCOLL_KILLS_SEED)"
	@echo "make stress   a million messages of up to 4 MiB between 8 ranks (SHMCOLL_STRESS_MESSAGES, SHMCOLL_STRESS_SEED)"
	@echo "make browser  the page of shmcoll bench --html in a browser (needs chromium)"
	@echo "make wheel    builds a source archive and a wheel from it, and runs a sum of two ranks with the wheel"
	@echo "make wheels   builds one wheel with a glue for each torch from 2.8 to 2.15 into dist/ (TORCHES=\"2.8 2.15\":"
	@echo "              for these); downloads torch's wheels, up to 5 GB, of which 4 GB stay in build/torch"
	@echo "make release VERSION=1.0.0rc1    checks whether this commit can be released, builds the archive of the sources"
	@echo "              and the list of parts into dist/, and says what to do next (TAG=yes: makes the tag)"
	@echo "make deb      the C library as packages for Debian, and as an archive, into dist/"
	@echo "make free-threaded PYTHON=python3.13t    builds for a free-threaded Python and tries it; downloads torch, some"
	@echo "              gigabytes into build/free-threaded (TORCH=torch==2.12.0: that one)"
	@echo "make huge     tensors of more than 2^31 elements and 4 GiB (needs 11 GiB of memory)"
	@echo "make aarch64  the C and C++ tests built for AArch64, under qemu"
	@echo "make bare-machine    the demo and all tests on a fresh Debian 12 (needs root; ONLY=name: a part of the"
	@echo "              tests; COMMAND='make build': another command; BARE_ROOT=folder: keeps the system)"
	@echo "make fmt      formats all sources"
	@echo "make clean    removes what was built; distclean: also .venv"

# ---- system packages: installed if that is allowed, otherwise named ----

define install_packages
	@missing=""; \
	for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' \
	    || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	    if [ "$$(id -u)" = 0 ]; then sudo=""; \
	    elif sudo -n true 2>/dev/null; then sudo="sudo"; \
	    else echo "Missing system packages. Run:  sudo apt-get install$$missing"; exit 1; fi; \
	    echo "installing:$$missing"; \
	    $$sudo apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends \
	        $$missing >/dev/null; \
	fi
endef

packages:
	$(call install_packages,$(PACKAGES_BUILD) $(PYTHON_LACKS))

packages-test: packages
	$(call install_packages,$(PACKAGES_TEST))

packages-aarch64: packages-test
	$(call install_packages,$(PACKAGES_AARCH64))

# ---- the virtual environment ----

# These two rules run each time. They touch their file only if something has changed.
$(VENV)/.wanted: FORCE
	@mkdir -p $(VENV); echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' >$@

$(VENV)/.built-for: $(VENV)/.torch FORCE
	@$(PY) tests/support/built_for.py && [ -e $@ ] || touch $@

$(VENV)/.torch: $(VENV)/.wanted | packages
	$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) makes no venv: see above"; exit 1; }
	$(PY) -m pip install -q --upgrade "pip>=23" wheel "setuptools>=64" ninja
	$(PY) -m pip install -q $(TORCH) numpy
	touch $@

$(VENV)/.extras: $(VENV)/.torch pyproject.toml
	$(PY) -m pip install -q $$($(PY) tests/support/groups.py dev docs examples)
	touch $@

$(VENV)/.built: $(VENV)/.built-for $(CORE_SOURCES) setup.py pyproject.toml python/_shmcoll_autoload.py
	@mkdir -p build; echo "building shmcoll (some minutes; build/pip.log)"
	@$(PY) -m pip install --no-build-isolation --no-deps -e . >build/pip.log 2>&1 \
	    || { cat build/pip.log; exit 1; }
	@touch $@

build: packages $(VENV)/.built
	@$(PY) -c 'import shmcoll; print("shmcoll", shmcoll.__version__, "is ready in $(VENV)")'

# ---- using it ----

# Python's packages and the system's are fetched at the same time, while the longest C build runs.
test:
	@$(MAKE) --no-print-directory -j2 $(VENV)/.extras $(if $(ONLY),packages-test,prepared)
	@$(MAKE) --no-print-directory build
	$(PY) tests/run.py --jobs $(JOBS) $(if $(ONLY),--only $(ONLY))

# What the lint lane builds, too: a dead link or a missing docstring is an error.
docs: $(VENV)/.extras
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open build/site/index.html; for its search: $(PY) -m http.server -d build/site"

prepared: packages-test
	@mkdir -p build; $(PYTHON) tests/run.py --jobs $(JOBS) --prepare >build/prepared.log 2>&1 \
	    || { cat build/prepared.log; exit 1; }

# Each example has a virtual environment with its framework, which also sees what .venv has.
frameworks: build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long frameworks $(if $(ONLY),--only $(ONLY))

# Includes the tests that the default lanes leave out under a sanitizer.
sanitizers: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long sanitizers

demo: build $(VENV)/.extras
	$(PY) examples/compare_backends.py

# A missing MPI or Google Benchmark is reported and left out. A goal that is not met is no error.
bench: build $(VENV)/.extras
	$(if $(ONLY),,@$(MAKE) --no-print-directory bench-core)
	$(PY) benchmarks/goals.py $(if $(ONLY),--only $(ONLY))

bench-core: packages
	@cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DSHMCOLL_BENCHMARKS=ON >build/bench.log 2>&1 \
	    && cmake --build build/bench -j $(JOBS) >>build/bench.log 2>&1 || { cat build/bench.log; exit 1; }
	build/bench/benchmarks/wakeups
	@if [ -x build/bench/benchmarks/kernels ]; then \
	    build/bench/benchmarks/kernels --benchmark_min_time=0.02; \
	else echo "kernels: not measured, no Google Benchmark (apt-get install libbenchmark-dev)"; fi

# Uses the Python that runs it, whose torch has CUDA: no packages, no network, no .venv. Each part has a
# time limit. Without a GPU it says so and does nothing.
GPU_OUT ?= benchmarks/results
gpu:
	@$(PYTHON) benchmarks/gpu/run.py --out $(GPU_OUT) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(NEXT),--next) $(if $(GPU_SECONDS),--seconds $(GPU_SECONDS))

soak: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long soak

test-torch: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long torch $(if $(ONLY),--only $(ONLY))

test-long: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long long $(if $(ONLY),--only $(ONLY))

clients: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long clients

fuzz: export SHMCOLL_FUZZ_PROGRAMS ?= 10000
fuzz: export SHMCOLL_FUZZ_SEED ?= $(shell date +%s)
fuzz: packages-test build $(VENV)/.extras
	@echo "SHMCOLL_FUZZ_SEED=$$SHMCOLL_FUZZ_SEED"
	$(PY) tests/run.py --jobs $(JOBS) --long fuzz

fuzz-hosts: export SHMCOLL_FUZZ_PROGRAMS ?= 3000
fuzz-hosts: export SHMCOLL_FUZZ_HOSTS = 1
fuzz-hosts: export SHMCOLL_FUZZ_SEED ?= $(shell date +%s)
fuzz-hosts: packages-test build $(VENV)/.extras
	@echo "SHMCOLL_FUZZ_SEED=$$SHMCOLL_FUZZ_SEED"
	$(PY) tests/run.py --jobs $(JOBS) --long fuzz

fuzz-peer: export SHMCOLL_LIES_SECONDS ?= 600
fuzz-peer: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long fuzz-peer

fuzz-store: export SHMCOLL_STORE_FUZZ ?= 20000
fuzz-store: export SHMCOLL_STORE_FUZZ_SEED ?= $(shell date +%s)
fuzz-store: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long fuzz-store

# Kills that many ranks with a stand-in GPU, and a quarter of that number while their group is made.
cuda-kills: export SHMCOLL_CUDA_KILLS ?= 500
cuda-kills: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long cuda-kills

hosts: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long hosts $(if $(ONLY),--only $(ONLY))

# Kills ranks, hosts, stores and links of so many jobs on two hosts; some seconds each.
hosts-kills: export SHMCOLL_KILLS ?= 1000
hosts-kills: export SHMCOLL_KILLS_SEED ?= $(shell date +%s)
hosts-kills: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long hosts-kills

models: packages-test
	$(PYTHON) tests/run.py --jobs $(JOBS) --long models

stress: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long stress

free-threaded: packages
	tests/free_threaded/try_python.sh $(PYTHON) $(if $(filter command line,$(origin TORCH)),"$(TORCH)")

browser: build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long browser

wheel: packages build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long wheel

wheels: packages build
	$(PY) -m pip install -q $$($(PY) tests/support/groups.py wheels)
	$(PY) packaging/wheels.py $(if $(TORCHES),--torch "$(TORCHES)") $(if $(GPUS),--gpus "$(GPUS)")

# /usr: Debian's folder for libraries depends on it.
deb: packages
	@mkdir -p build; cmake -S . -B build/deb -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
	    -DSHMCOLL_CUDA=OFF >build/deb.log 2>&1 \
	    && cmake --build build/deb -j $(JOBS) --target shmcoll shmcoll_cuda >>build/deb.log 2>&1 \
	    && cpack --config build/deb/CPackConfig.cmake -B dist >>build/deb.log 2>&1 \
	    || { cat build/deb.log; exit 1; }
	@rm -rf dist/_CPack_Packages; ls dist/*.deb dist/shmcoll-*-Linux.tar.gz

release: $(VENV)/.release
	@$(PY) packaging/release.py '$(VERSION)' $(if $(TAG),--tag)

$(VENV)/.release: $(VENV)/.torch pyproject.toml
	$(PY) -m pip install -q $$($(PY) tests/support/groups.py release)
	touch $@

huge: packages-test build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long huge

aarch64: packages-aarch64 build $(VENV)/.extras
	$(PY) tests/run.py --jobs $(JOBS) --long aarch64 $(if $(ONLY),--only $(ONLY))

# Without ONLY and COMMAND it runs both commands of the README. tests/bare_machine.sh has the requirements.
bare-machine:
	@tests/bare_machine.sh $(if $(ONLY),'make test ONLY=$(ONLY)') $(if $(COMMAND),'$(COMMAND)')

fmt: packages-test $(VENV)/.extras
	find src tests benchmarks examples -name '*.[ch]' -o -name '*.cc' -o -name '*.[ch]pp' | \
	    xargs clang-format -i
	$(PY) -m ruff format -q
	$(PY) -m ruff check -q --fix

clean:
	rm -rf build out python/shmcoll/lib python/shmcoll/include python/shmcoll/_build_info.json python/shmcoll/*.so
	rm -f $(VENV)/.built

distclean: clean
	rm -rf $(VENV) *.egg-info python/*.egg-info
