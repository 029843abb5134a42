# Every verb does the set-up that it needs.
SHELL := /bin/sh
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo clean test test-unit test-lowest check format image-check deploy-check bench performance chaos release lock golden screenshots

help:  ## list the verbs
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use it

setup:  ## install the environment, and Java where it is missing
	@scripts/setup

demo: setup  ## three simulated months, live, with the audit's verdict
	@$(BIN)/opentab demo

clean:  ## remove what the set-up and the demo made
	@rm -rf .venv .tools opentab-home opentab-chaos opentab-bench opentab-bench.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

##@ Test

test: check  ## all checks and all tests
	@scripts/setup tests
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40

test-unit:  ## what needs no Java: units, and laws with a tenth of their examples, in a minute
	@scripts/setup python
	@$(BIN)/pytest -q -n 2 --dist worksteal -m 'not slow' --hypothesis-profile quick tests/unit tests/laws

test-lowest:  ## test-unit with the lowest versions that pyproject.toml allows
	@scripts/setup lowest
	@.tools/lowest/bin/pytest -q -n 2 --dist worksteal -m 'not slow' --hypothesis-profile quick tests/unit tests/laws

check: setup  ## format, lint, types, import layers
	@$(BIN)/ruff format --check --quiet . || { echo "make format would change files"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports

format: setup  ## format the code and mend what lint can mend
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

chaos:  ## kill every part of a real cluster in turn, for half an hour or so; the report goes to opentab-chaos/
	@scripts/setup chaos
	@$(BIN)/opentab chaos --out opentab-chaos --json opentab-chaos/chaos.json

image-check:  ## build the image of Debian's packages with buildah and run the demo inside of it; needs root
	@sh deploy/check/image.sh

deploy-check: setup  ## the compose file and the manifests by their own programs' types, every panel by Prometheus; needs Go
	@cd deploy/check && go run . ..
	@$(BIN)/python deploy/check/panels.py

##@ Measure

bench:  ## measure all that opentab bench can beside its peers, for two hours; installs wrk, Redis, Kafka and Flink
	@scripts/setup bench
	@$(BIN)/opentab bench --json opentab-bench.json --plots opentab-bench

performance: setup  ## make docs/performance.md of its text and of what the bench measured
	@PYTHONPATH=tests/support $(BIN)/python tests/support/performance_page.py

##@ Release

release: setup  ## write the version and date the changelog, build wheel and sdist: make release VERSION=1.2.3
	@$(BIN)/python scripts/release.py $(VERSION)

lock: setup  ## resolve the dependencies anew (needs uv)
	@uv=$$(command -v .tools/uv/bin/uv || command -v uv) && $$uv pip compile -q pyproject.toml --extra tools --group dev --universal \
	  --generate-hashes --no-header --no-emit-index-url --no-annotate --upgrade -o requirements.lock && \
	  $$uv pip compile -q --group newest-spark --universal --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  --upgrade -o requirements-newest-spark.lock && \
	  $$uv pip compile -q pyproject.toml --resolution lowest-direct --extra tools --group dev --universal \
	  --generate-hashes --no-header --no-emit-index-url --no-annotate --upgrade -o requirements-lowest.lock && \
	  $$uv pip compile -q pyproject.toml -c requirements.lock --universal --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  -o requirements-image.lock && \
	  for group in uv flink build; do \
	    $$uv pip compile -q --group $$group --universal --generate-hashes --no-header --no-emit-index-url --no-annotate \
	      --upgrade -o requirements-$$group.lock || exit 1; \
	  done

golden: setup  ## write a golden home of this version, for later versions to read
	@PYTHONPATH=tests/support $(BIN)/python tests/support/golden.py

screenshots: setup  ## take the pictures of the page that the README shows
	@scripts/setup tests
	@OPENTAB_SCREENSHOTS=docs/screenshots $(BIN)/pytest -q tests/e2e/test_page.py -k test_screenshots
	@cd docs/screenshots && rm -f *-phone-* *-dark.png pinned-*
