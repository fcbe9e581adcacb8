#!/usr/bin/env bash
# Puts a Prometheus with the chart's rules on the test cluster, where Weft is installed: `make cluster-monitoring`. Its image
# is in the nodes already. Run again it takes the rules, and the authority's certificates, as they are now.
#
#   hack/cluster-monitoring.sh [RULES]    KUBECONFIG says which cluster
set -euo pipefail
cd "$(dirname "$0")/.."

rules=${1:-charts/weft/monitoring/rules.yaml}
PATH="$(hack/cluster-binaries.sh --where):$PATH"

authorities=$(kubectl get configmap weft-ca --namespace weft-system --output 'jsonpath={.data.ca\.crt}')
kubectl create namespace monitoring --dry-run=client --output yaml | kubectl apply --filename - >/dev/null
kubectl create configmap prometheus --namespace monitoring --dry-run=client --output yaml \
    --from-file prometheus.yml=tests/monitoring/prometheus.yml --from-file rules.yaml="$rules" \
    --from-literal ca.crt="$authorities" |
    kubectl apply --filename - >/dev/null
kubectl apply --filename tests/monitoring/cluster.yaml >/dev/null
kubectl rollout restart deployment/prometheus --namespace monitoring >/dev/null
kubectl rollout status deployment/prometheus --namespace monitoring --timeout 120s >&2
