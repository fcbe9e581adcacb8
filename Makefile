# The verbs of the house. Each sets up what it needs by itself; `make` alone lists them.
# ARGS="..." goes on to the program behind a verb: make play ARGS="--nodes 8 --loss 0.1%"

.DEFAULT_GOAL := help
.PHONY: help play test vopr bench lint generate

help: ## List the verbs
	@sed -n 's/^\([a-z]*\):.* ## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r verb text; do printf 'make %-9s %s\n' "$$verb" "$$text"; done

play: ## Send a real model from one node of a small fabric to all the others
	@hack/play.sh $(ARGS)

test: ## Check everything CI checks: format, lints, docs, wasm32, tests, fuzzing, VOPR
	@hack/check.sh

vopr: ## Look for bugs of the transport by random seeds, for a minute unless ARGS say otherwise
	@hack/setup.sh build
	@cargo run --profile vopr --locked -p weft-sim --bin vopr -- $(or $(ARGS),--seconds 60)

bench: ## Measure against the peers; prints a table and writes target/bench/*.json
	@hack/setup.sh bench
	@cargo build --release --locked -p weft-cli -p weft-agent -p weft-tests --bins
	@"$${CARGO_TARGET_DIR:-target}/release/bench" $(ARGS)

lint: ## Format check, clippy and the house rules: the quick half of `make test`
	@hack/setup.sh test
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked -- -D warnings
	@cargo run --quiet --locked -p xtask -- lint
	@cargo run --quiet --locked -p xtask -- generate --check

generate: ## Write the generated sections of committed files
	@hack/setup.sh build
	@cargo run --quiet --locked -p xtask -- generate
