# Both commands do their whole set-up: a virtual environment in .venv, and what is missing on the machine.
SOURCES := pyproject.toml constraints.txt native/CMakeLists.txt $(wildcard native/*.cpp native/*.hpp)

.PHONY: test demo check docs wheels soak sanitize sanitize-threads clean

test: .venv/ready-dev check
	.venv/bin/python -m pytest -q -n auto --dist loadgroup

check: .venv/ready-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

demo: .venv/ready
	.venv/bin/coil demo

# Kills, disk errors, power failures, swapped folders, damaged files, attacks and traffic, and the sanitizers.
soak: .venv/ready-dev
	.venv/bin/python -m bench.soak

# The native code under the address and undefined-behaviour sanitizers. Their reports go to the real stderr, which
# pytest must not capture.
sanitize: .venv/ready-dev
	tools/run_sanitized address .venv/bin/python -m pytest -q --capture=sys tests/test_kernels.py tests/test_certificate.py \
	  tests/test_native_safety.py tests/test_hostile_arrays.py

# The native code under the thread sanitizer. Left out are tests on one thread that throw hundreds of exceptions: its runtime
# loses count of the frames that they leave and fails at exit.
sanitize-threads: .venv/ready-dev
	tools/run_sanitized thread .venv/bin/python -m pytest -q --capture=sys -k "not stays_within" \
	  tests/test_kernels.py tests/test_native_safety.py

# Help texts, tables and pictures in the docs are made from the commands, the result files and the model; then the site.
docs: .venv/ready-dev
	.venv/bin/python -m tools.make_docs
	.venv/bin/python -m tools.illustrate
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet
	@echo "the site is in build/site: python3 -m http.server --directory build/site"

# The source archive and wheels, in dist/.
wheels:
	tools/build_wheels

.venv/ready: $(SOURCES)
	tools/setup base

.venv/ready-dev: $(SOURCES)
	tools/setup dev

clean:
	rm -rf .venv build dist
