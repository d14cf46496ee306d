# A newcomer needs only `make demo` and `make test`. Both use one environment in .venv: `make demo` installs what
# exports and runs, `make test` adds the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.demo
READY  := $(VENV)/.ready
MINUTES ?= 10
# Where torch comes from; the package index if empty, which for Linux has the builds with CUDA, gigabytes. For the
# CPU build: TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Nothing but torch itself is taken from there.
TORCH = $(if $(TORCH_INDEX),$(1)/bin/python $(INSTALL) --no-deps --index-url $(TORCH_INDEX) torch)

# What `make web` builds for the wheels. Only `wheels` and `web` build it again if it is there.
PAGE := capsedge/deploy/site/index.html

# Containers often set it; then every process of the tests compiles the package and rewrites all asserts again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# The other systems that types are checked for, each with a cache of its own, which stays valid.
TYPES := $(foreach system,win32 darwin,"--platform $(system) --cache-dir .mypy_cache/$(system)")
.PHONY: help demo test test-all test-slow test-nvidia test-ray test-gpu test-gpu-code test-cuda-provider bench-serve runtimes web test-web wheels wheels-all cuda-wheel test-wheel test-windows-build test-wine test-release test-arm docs conformance fuzz mutants native-builds cuda lint format clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call TORCH,$(VENV))
	$(BIN)/python $(INSTALL) -e '.[cpu,export]'
	@touch $@

# By name: it is installed, so pip adds only what the extra names, and compiles nothing again.
$(READY): $(DEMO)
	$(BIN)/python $(INSTALL) 'capsedge[dev]'
	@touch $@

demo: $(DEMO) ## Export and verify the default model, classify the sample images
	@PATH="$(abspath $(BIN)):$$PATH" bash tools/demo.sh

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	printf '%s\n' '-p benchmarks -p tools' $(TYPES) | xargs -P 2 -L 1 $(BIN)/mypy -p capsedge
	$(BIN)/lint-imports

test: lint ## Run the fast tests, in minutes; FOLDER=graph runs those of tests/graph
	$(BIN)/python -m pytest -n auto --dist worksteal $(FOLDER:%=tests/%)

test-all: lint ## Run the thorough tests too, as CI does
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(FOLDER:%=tests/%)

test-slow: $(READY) ## Run the tests that take minutes each or need special tools
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow $(FOLDER:%=tests/%)

test-nvidia: $(READY) ## Test with NVIDIA's parser, builder and plugin registry, without a GPU; installs TensorRT-RTX
	@echo "Installing TensorRT-RTX (96 MB): proprietary NVIDIA software; the package contains its licence."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/nvidia/requirements.txt
	CAPSEDGE_REQUIRE_NVIDIA=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" tests/nvidia

test-ray: ## Test `capsedge batch` on a Ray cluster of three nodes on this machine; installs Ray in build/ray
	@echo "Installing Ray (240 MB) and pandas, beside the packages of the tests, in build/ray."
	$(PYTHON) -m venv build/ray
	$(call TORCH,build/ray)
	build/ray/bin/python $(INSTALL) -r tests/batch_inference/requirements.txt -e '.[dev]'
	RAY_USAGE_STATS_ENABLED=0 build/ray/bin/python -m pytest -n 0 tests/batch_inference -m "slow or not slow"

bench-serve: $(READY) ## Measure `capsedge serve` against its peers and write docs/benchmarks/serving.md (15 minutes, idle machine)
	$(BIN)/python $(INSTALL) fastapi
	$(BIN)/python -m benchmarks.serving $(SERVE)

runtimes: $(READY) ## Install other versions of ONNX Runtime in build/runtimes, for the tests
	$(BIN)/python -m tools.runtimes

web: ## Build the npm package and the page of `capsedge deploy web`; installs Node.js in build/node if it is missing or old
	node=$$(PYTHON=$(PYTHON) tools/node.sh) && export PATH="$$node:$$PATH" && \
	npm ci --prefix capsedge/runtime/web --ignore-scripts && \
	npm run lint --prefix capsedge/runtime/web && \
	npm run build --prefix capsedge/runtime/web && \
	npm ci --prefix capsedge/runtime/web/page --ignore-scripts && \
	npm run build --prefix capsedge/runtime/web/page

$(PAGE):
	$(MAKE) web

test-web: $(READY) web ## Test the npm package and the page in Node.js and Chromium
	PATH="$$(tools/node.sh):$$PATH" $(BIN)/python -m pytest -n 0 tests/web tests/page tests/deploy -m "slow or not slow"

conformance: $(READY) ## Check an operator, OP=Squash: its tables, then every case on every backend; without OP all of them
	$(BIN)/python -m pytest -n 0 tests/spec tests/models/ops tests/native/test_operators.py tests/conformance/test_gaps.py
	$(BIN)/python -m tests.conformance test --filter '^${OP:%=%\(}'
	$(BIN)/python -m tests.conformance gradient --backend torch --filter '^${OP:%=%\(}'

fuzz: $(READY) ## Fuzz readers, option values, verbs and the server for MINUTES=10 (the C targets need clang)
	$(BIN)/python $(INSTALL) -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

mutants: $(READY) ## Put faults into the code and count which tests find them (two hours; SUBJECT=metadata: one of the nine)
	$(BIN)/python $(INSTALL) 'capsedge[mutants]'
	$(BIN)/python -m tools.mutants $(SUBJECT:%=--only %)

test-gpu: $(READY) cuda ## Run everything that needs a GPU, on a machine with one, and write one report (two hours; resumes)
	$(BIN)/python -m tools.gpu

test-cuda-provider: $(READY) ## Test our kernels in ONNX Runtime's CUDA provider and in PyTorch, without a GPU; installs onnxruntime-gpu, and nvcc if it is missing, in build
	@echo "Installing onnxruntime-gpu (256 MB) in build/provider, apart from the environment's ONNX Runtime."
	command -v nvcc > /dev/null || export PATH="$$(dirname "$$(PYTHON=$(PYTHON) tools/nvcc.sh)"):$$PATH" && \
	$(BIN)/python -m tools.ptx.provider && \
	CAPSEDGE_REQUIRE_PROVIDER=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/native/ptx/test_provider.py tests/native/ptx/test_torch.py -m "not slow"

test-gpu-code: $(READY) ## Execute nvcc's code for the CUDA kernels on the CPU, all cases, three architectures, three versions of ONNX Runtime (needs nvcc of CUDA 13)
	$(BIN)/python -m tools.ptx.provider --others
	CAPSEDGE_REQUIRE_PROVIDER=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/native/ptx tests/native/test_tools_gpu.py -m "slow or not slow"

native-builds: $(READY) ## Test sanitizer, old x86 and ARM builds of the kernels (needs g++-aarch64-linux-gnu, qemu-user)
	$(BIN)/python -m pytest tests/native -m slow

wheels: $(DEMO) web cuda ## Build the page, the CUDA kernels, the source archive and the wheels for Linux in dist/
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	$(BIN)/python -m tools.wheels

# Asks for the linker before half an hour of compiling, not after it.
wheels-all: $(DEMO) ## Build what `make wheels` builds, and the wheels for Windows and macOS (which needs lld-19)
	@$(BIN)/python -c 'from tools.macos.link import linker; linker()'
	$(MAKE) web cuda
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	$(BIN)/python -m tools.wheels --all

cuda-wheel: $(DEMO) cuda ## Build the wheel capsedge-cuda alone, in dist/ (TensorRT's headers: CAPSEDGE_TENSORRT_INCLUDE)
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	$(BIN)/python -m tools.wheels cuda

test-wheel: $(READY) $(PAGE) ## Build the wheel for this processor, install it in environments of its own, compare it with the local build, run every verb
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	[ -n "$$CAPSEDGE_WHEELS" ] || { rm -rf build/wheels && $(BIN)/python -m tools.wheels $$(uname -m) --into build/wheels; }
	CAPSEDGE_REQUIRE_RELEASE=1 CAPSEDGE_WHEELS=$${CAPSEDGE_WHEELS:-build/wheels} $(BIN)/python -m pytest -n 2 --dist loadfile -m slow tests/release/test_native_wheel.py tests/test_installed.py

test-windows-build: $(READY) ## Compile both libraries for Windows, check what they export and need; runs nothing of them
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	CAPSEDGE_REQUIRE_RELEASE=1 $(BIN)/python -m pytest -n 0 -m slow tests/release/test_windows_libraries.py

test-wine: $(READY) $(PAGE) ## Run the wheel for Windows in Wine, compare it with Linux; installs Wine (Debian) and a Windows Python
	tools/wine.sh
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	$(BIN)/python -m tools.wine
	CAPSEDGE_REQUIRE_RELEASE=1 $(BIN)/python -m pytest -n 0 -m slow tests/wine tests/release/test_windows_wheel.py

test-release: $(READY) $(PAGE) cuda ## Build a release and test what is in it, on every Python of this machine; asks the package index
	$(BIN)/python $(INSTALL) 'capsedge[release]' uv
	CAPSEDGE_REQUIRE_RELEASE=1 $(BIN)/python -m pytest -n 0 -m slow tests/release --ignore=tests/release/test_arm_wheel.py

test-arm: $(READY) $(PAGE) ## Test the kernels, libcapsedge and the wheel for 64-bit ARM in an emulator; installs QEMU and a compiler (Debian)
	tools/arm64_root.sh
	$(BIN)/python $(INSTALL) 'capsedge[release]'
	CAPSEDGE_REQUIRE_RELEASE=1 $(BIN)/python -m pytest -n 0 -m slow -k arm \
		tests/release/test_arm_wheel.py tests/native/test_vectors_on_arm.py tests/native/test_builds.py

docs: $(DEMO) ## Build the documentation site in build/site
	$(BIN)/python $(INSTALL) 'capsedge[docs]'
	$(BIN)/python -m mkdocs build --strict

cuda: ## Build the CUDA kernels for every GPU in build/cuda, 15 minutes of one core (CUDA_ARCHITECTURES=87 for one)
	nvcc=$$(PYTHON=$(PYTHON) tools/nvcc.sh) && \
	cmake -S capsedge/runtime/native -B build/cuda -DCAPSEDGE_CUDA=ON -DCAPSEDGE_NVCC="$$nvcc" \
		-DCAPSEDGE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)"
	cmake --build build/cuda --target capsedge_cuda
	$(PYTHON) -m tools.cuda12 build/cuda

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the outputs of the targets
	rm -rf $(VENV) build out dist capsedge/runtime/web/dist capsedge/runtime/web/node_modules capsedge/runtime/web/page/node_modules
