# The short way to everything. Each target but clean installs what is missing first (scripts/setup.sh). Build folders:
# build/ with the engine (the program is build/fivefold), build-asan/ and build-tsan/ with a sanitizer, without it.

JOBS := $(shell nproc)

.PHONY: build test lint demo lab asan tsan clean setup

build: setup
	cmake --preset full
	cmake --build --preset full --parallel $(JOBS)

test: build
	ctest --preset full

lint: setup
	cmake --preset full
	ctest --preset full --label-regex lint

demo: build
	scripts/demo.sh

lab: build
	scripts/lab.sh

asan tsan: setup
	cmake --preset $@
	cmake --build --preset $@ --parallel $(JOBS)
	ctest --preset $@

clean:
	rm -rf build build-dev build-asan build-tsan build-tidy

setup:
	@scripts/setup.sh
