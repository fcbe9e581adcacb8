# The verbs of the house. Each sets up what it needs by itself; `make` alone lists them.
# ARGS="..." goes on to the program behind a verb: make play ARGS="--nodes 8 --loss 0.1%"

.DEFAULT_GOAL := help
.PHONY: help play test vopr bench bench-cluster figures soak e2e cluster-up cluster-down cluster-load-images cluster-monitoring screenshots install-c lint generate

help: ## List the verbs
	@sed -n 's/^\([a-z0-9-]*\):.* ## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r verb text; do printf 'make %-19s %s\n' "$$verb" "$$text"; done

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
	@cargo build --release --locked -p weft-verbs-shim
	@cargo build --release --locked -p weft-python
	@WEFT_NIXL="$$(hack/nixl.sh --where)" WEFT_MOONCAKE="$$(hack/mooncake.sh --where)" \
		"$${CARGO_TARGET_DIR:-target}/release/bench" $(ARGS)

bench-cluster: ## Measure operator and agents on a real Kubernetes; writes target/bench/cluster.json
	@hack/setup.sh cluster
	@hack/cluster-binaries.sh >/dev/null
	@cargo build --release --locked -p weft-operator -p weft-agent -p weft-node-engine -p weft-device-plugin -p weft-cluster \
		-p weft-tests --bins
	@hack/images.sh target/bench/images operator="$${CARGO_TARGET_DIR:-target}/release/weft-operator" \
		agent="$${CARGO_TARGET_DIR:-target}/release/weft-agent" \
		devices="$${CARGO_TARGET_DIR:-target}/release/weft-engine" verbs="$$(hack/cluster-binaries.sh --where)/pause"
	@"$${CARGO_TARGET_DIR:-target}/release/bench-cluster" --server "$${CARGO_TARGET_DIR:-target}/release/cluster" \
		$(ARGS) $(foreach who,operator agent devices verbs,target/bench/images/$(who).tar)

figures: ## Draw the papers' experiments as measured here; writes target/figures/*.svg and *.json
	@hack/setup.sh bench
	@cargo build --release --locked -p weft-tests --bin figures
	@cargo build --release --locked -p weft-verbs-shim
	@"$${CARGO_TARGET_DIR:-target}/release/figures" $(ARGS)

screenshots: ## Take the pictures of the fabric's page again: docs/images/page*.png
	@hack/setup.sh play
	@cargo build --profile play --locked -p weft-cli -p weft-agent
	@hack/screenshots.sh

soak: ## Kill 10,000 programs of a virtual device in mid-write, and look what they leave
	@hack/setup.sh build
	@WEFT_TEST_DEATHS=10000 cargo test --locked -p weft-device-server --test server killed_in_mid_write

e2e: ## Test on a real Kubernetes: brings a cluster up, uses it, takes it down
	@hack/e2e.sh $(ARGS)

# Of its own crate only: a new machine builds every dependency first, and this program needs few of the workspace's.
# The price: a dependency that the workspace wants with more features is built a second time for it.
CLUSTER := --locked -p weft-cluster --bin cluster

cluster-up: ## Bring up a real Kubernetes of NODES=3 nodes on a small fabric, in target/cluster
	@hack/step.sh "1 of 4: the packages of this machine" hack/setup.sh cluster
	@hack/step.sh "2 of 4: Kubernetes' programs, once a machine" hack/cluster-binaries.sh >/dev/null
	@hack/step.sh "3 of 4: the program cluster" cargo build $(CLUSTER)
	@hack/step.sh "4 of 4: the cluster" "$${CARGO_TARGET_DIR:-target}/debug/cluster" up --nodes $(or $(NODES),3) $(ARGS)

cluster-load-images: ## Build Weft's images and put them where the cluster's pods find them
	@hack/setup.sh cluster
	@hack/step.sh "1 of 3: Weft's programs" cargo build --locked --workspace --bin cluster --bin weft-agent --bin weft-operator --bin kubectl-weft \
		--bin weft-engine --bin weft-device-plugin --bin weft-volume-driver
	@hack/step.sh "2 of 3: the images" hack/images.sh target/images $(foreach who,agent operator,$(who)=$(or $(CARGO_TARGET_DIR),target)/debug/weft-$(who)) \
		devices=$(or $(CARGO_TARGET_DIR),target)/debug/weft-engine \
		volumes=$(or $(CARGO_TARGET_DIR),target)/debug/weft-volume-driver verbs="$$(hack/cluster-binaries.sh --where)/pause"
	@hack/step.sh "3 of 3: into every node" "$${CARGO_TARGET_DIR:-target}/debug/cluster" load-images target/images/*.tar

cluster-monitoring: ## Put a Prometheus with Weft's rules on the cluster
	@hack/setup.sh cluster
	@hack/step.sh "1 of 4: Prometheus, once a machine" hack/monitoring-binaries.sh >/dev/null
	@hack/step.sh "2 of 4: its image" hack/images.sh target/images prometheus="$$(hack/monitoring-binaries.sh --where)/prometheus"
	@cargo build --quiet $(CLUSTER)
	@hack/step.sh "3 of 4: into every node" "$${CARGO_TARGET_DIR:-target}/debug/cluster" load-images target/images/prometheus.tar
	@KUBECONFIG="$$("$${CARGO_TARGET_DIR:-target}/debug/cluster" kubeconfig)" hack/step.sh "4 of 4: Prometheus" hack/cluster-monitoring.sh
	@echo "kubectl port-forward --namespace monitoring service/prometheus 9090, and a Grafana that has http://localhost:9090 as its data source: docs/monitoring.md"

cluster-down: ## Take the cluster down and leave nothing of it
	@cargo build --quiet $(CLUSTER)
	@"$${CARGO_TARGET_DIR:-target}/debug/cluster" down $(ARGS)

install-c: ## Install the TransferEngine for C (weft.h, libweft, weft.pc) under PREFIX=/usr/local
	@hack/setup.sh build
	@hack/install-c.sh --prefix "$(or $(PREFIX),/usr/local)" $(ARGS)

lint: ## Format check, clippy and the house rules: the quick half of `make test`
	@hack/setup.sh test
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked -- -D warnings
	@cargo clippy --workspace --test cluster --test e2e --locked -- -D warnings
	@cargo run --quiet --locked -p xtask -- lint
	@cargo run --quiet --locked -p xtask -- generate --check

generate: ## Write the generated sections of committed files
	@hack/setup.sh build
	@cargo run --quiet --locked -p xtask -- generate
