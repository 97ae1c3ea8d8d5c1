# Both commands do their whole set-up: a virtual environment in .venv, and what is missing on the machine.
SOURCES := pyproject.toml constraints.txt native/CMakeLists.txt $(wildcard native/*.cpp native/*.hpp)

.PHONY: test demo check docs soak sanitize clean

test: .venv/ready-dev check
	.venv/bin/python -m pytest -q -n auto

check: .venv/ready-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

demo: .venv/ready
	.venv/bin/coil demo

# Hundreds of kills instead of dozens.
soak: .venv/ready-dev
	COIL_CRASH_ROUNDS=100 .venv/bin/python -m pytest -q tests/test_crash.py tests/test_service_crash.py tests/test_service_attack.py -n auto

# The native code under the address and undefined-behaviour sanitizers.
sanitize: .venv/ready-dev
	cmake -S native -B build/sanitize -DCOIL_SANITIZE=ON -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python \
	  -Dnanobind_DIR=$$(.venv/bin/python -m nanobind --cmake_dir) >/dev/null
	cmake --build build/sanitize
	tools/run_sanitized build/sanitize .venv/bin/python -m pytest -q tests/test_kernels.py tests/test_certificate.py

# Help texts and tables in the docs are made from the commands and the result files.
docs: .venv/ready-dev
	.venv/bin/python -m tools.make_docs

.venv/ready: $(SOURCES)
	tools/setup base

.venv/ready-dev: $(SOURCES)
	tools/setup dev

clean:
	rm -rf .venv build dist
