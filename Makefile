# Everything a newcomer needs: `make demo` and `make test`. Both make their own environment in .venv.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-nvidia runtimes fuzz native-builds cuda lint format clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## Export the default model, prove it equal, classify the sample images
	@PATH="$(abspath $(BIN)):$$PATH" bash tools/demo.sh

lint: $(READY) ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p capsedge

test: lint ## The fast tests, as CI runs them
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: lint ## Slow tests too
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow"

test-nvidia: $(READY) ## NVIDIA's parser, builder and plugin registry, without a GPU: installs TensorRT-RTX
	@echo "Installing TensorRT-RTX: proprietary software of NVIDIA, whose licence comes with it (96 MB)."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/nvidia/requirements.txt
	CAPSEDGE_REQUIRE_NVIDIA=1 $(BIN)/python -m pytest -n auto --dist worksteal tests/nvidia

runtimes: $(READY) ## Other versions of ONNX Runtime in build/runtimes, on which the tests run too
	$(BIN)/python -m tools.runtimes

fuzz: $(READY) ## Fuzz every reader for MINUTES=10 (wants clang for the C targets)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

native-builds: $(READY) ## Sanitizer, old x86 and ARM builds of the kernels (wants g++-aarch64-linux-gnu, qemu-user)
	$(BIN)/python -m pytest tests/native -m slow

cuda: ## The CUDA kernels in build/cuda, for every GPU that nvcc knows (CUDA_ARCHITECTURES=87 for one)
	cmake -S runtime/native -B build/cuda -DCAPSEDGE_CUDA=ON -DCAPSEDGE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)"
	cmake --build build/cuda --target capsedge_cuda

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what the targets made
	rm -rf $(VENV) build out dist
