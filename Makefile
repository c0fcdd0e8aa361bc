# make quickstart   trains a small GPT on real text and prints what it writes
# make chat         serves a small real model, and opens a chat with it
# make test         builds everything and runs every test
BUILD := build
JOBS  := $(shell nproc)
# Some of them wait: for a deadline, a peer, a disk.
TESTS_AT_ONCE := $(shell echo $$(($(JOBS) + 1)))

.PHONY: help setup configure build install package wheel test-setup test-programs test sanitize quickstart chat gpu-check gpu-bundle bench-all performance docs format tidy

help:
	@echo 'make quickstart  train a small GPT here and print what it writes (QUICKSTART_TEXT=file: on your text)'
	@echo 'make chat        fetch a small real model, serve it, and chat with it in the terminal'
	@echo 'make test        set up, build, run every test'
	@echo 'make sanitize    tests under the address, undefined-behaviour and thread sanitizers, and fuzz targets'
	@echo 'make build       the program: $(BUILD)/megatron'
	@echo 'make install     the program and the library below PREFIX (/usr/local): docs/embedding.md'
	@echo 'make package     Debian packages and tarballs of both, in $(BUILD)/packages'
	@echo 'make wheel       the program and its Python package, for pip, in $(BUILD)/packages: docs/python.md'
	@echo 'make setup       install what is missing (TORCH_DIR=…: use that libtorch)'
	@echo 'make gpu-check   on a machine with an NVIDIA GPU: GPU tests and benchmark'
	@echo 'make gpu-bundle  .gpu/: what proves the program on a machine with a GPU, where nothing can be built'
	@echo 'make bench-all   every benchmark with its peers, then the table of docs/performance.md (BENCH=--quick: briefly)'
	@echo 'make docs        write the generated references again (docs/config.md, from_megatron_lm.md, schedules)'
	@echo 'make format      clang-format all sources;   make tidy: clang-tidy over all of them (TIDY=--new: the newest)'

setup:
	@scripts/setup.sh

configure: setup
	@cmake --preset release -DTORCH_DIR=$(abspath $(TORCH_DIR)) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@mv $(BUILD).log $(BUILD)/configure.log

build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target megatron

install: build
	@cmake --install $(BUILD) --strip $(if $(PREFIX),--prefix $(abspath $(PREFIX)))

package: build
	@cpack --config $(BUILD)/CPackConfig.cmake

wheel: build
	@scripts/make_wheel.py $(BUILD)

test-setup: setup
	@scripts/setup.sh --tests

# What tests compare with is fetched while the programs are built.
test-programs: test-setup configure
	@scripts/setup.sh --peers & peers=$$!; cmake --build $(BUILD) -j $(JOBS) --target all gpu_test; status=$$?; wait $$peers && exit $$status

test: test-programs
	@ctest --test-dir $(BUILD) -j $(TESTS_AT_ONCE) --no-tests=error --output-on-failure --output-junit tests.xml \
	  --test-output-size-passed 10000000; status=$$?; \
	scripts/check_tests.py $(BUILD) && exit $$status

sanitize: test-programs
	@scripts/sanitize.sh

quickstart: build
	@scripts/quickstart.sh

chat: build
	@scripts/chat.sh

gpu-check:
	@scripts/gpu_check.sh

gpu-bundle: test-setup configure
	@cmake --build $(BUILD) -j $(JOBS) --target megatron gpu_test
	@scripts/gpu_bundle.sh

bench-all:
	@bench/run_all.sh $(BENCH)

performance:
	@scripts/performance.py

docs: build
	@$(BUILD)/megatron docs config >docs/config.md.new && mv docs/config.md.new docs/config.md
	@$(BUILD)/megatron docs megatron-lm >docs/from_megatron_lm.md.new && mv docs/from_megatron_lm.md.new docs/from_megatron_lm.md
	@$(BUILD)/megatron docs schedules --output docs/schedules

# Not installed by setup, but for clang-format by setup --tests.
needs = command -v $(1) >/dev/null || { \
  printf '%s\n' 'make $@ needs $(1).' '  got:  no $(1) in PATH' '  fix:  apt-get install $(1)' >&2; exit 1; }

format:
	@$(call needs,clang-format)
	@git ls-files -z '*.h' '*.cpp' '*.cu' | xargs -0 clang-format -i

tidy: test-setup configure
	@scripts/tidy.py $(TIDY)
