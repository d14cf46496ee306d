# A newcomer needs only `make demo` and `make test`. Both create their own environment in .venv.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-nvidia runtimes wheels docs fuzz native-builds cuda web test-web lint format clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## Export and verify the default model, classify the sample images
	@PATH="$(abspath $(BIN)):$$PATH" bash tools/demo.sh

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p capsedge

test: lint ## Run the fast tests, as CI does
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: lint ## Run all tests, slow ones included
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow"

test-nvidia: $(READY) ## Test with NVIDIA's parser, builder and plugin registry, without a GPU; installs TensorRT-RTX
	@echo "Installing TensorRT-RTX (96 MB): proprietary NVIDIA software; the package contains its licence."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/nvidia/requirements.txt
	CAPSEDGE_REQUIRE_NVIDIA=1 $(BIN)/python -m pytest -n auto --dist worksteal tests/nvidia

runtimes: $(READY) ## Install other versions of ONNX Runtime in build/runtimes, for the tests
	$(BIN)/python -m tools.runtimes

fuzz: $(READY) ## Fuzz every reader for MINUTES=10 (the C targets need clang)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

native-builds: $(READY) ## Test sanitizer, old x86 and ARM builds of the kernels (needs g++-aarch64-linux-gnu, qemu-user)
	$(BIN)/python -m pytest tests/native -m slow

wheels: $(READY) ## Build the source archive and all wheels in dist/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	$(BIN)/python -m tools.wheels

docs: $(READY) ## Build the documentation site in build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

cuda: ## Build the CUDA kernels in build/cuda, for every GPU that nvcc supports (CUDA_ARCHITECTURES=87 for one)
	cmake -S runtime/native -B build/cuda -DCAPSEDGE_CUDA=ON -DCAPSEDGE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)"
	cmake --build build/cuda --target capsedge_cuda

web: ## Build the npm package of runtime/web (needs Node.js 20)
	cd runtime/web && npm ci --ignore-scripts --no-audit --no-fund && npm run lint && npm run build

test-web: $(READY) web ## Test the npm package in Node.js and in headless Chromium
	$(BIN)/python -m pytest tests/web -m "slow or not slow"

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the outputs of the targets
	rm -rf $(VENV) build out dist runtime/web/dist runtime/web/node_modules
