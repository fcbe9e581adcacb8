#!/usr/bin/env bash
# Runs one step of a verb that takes minutes, and says on standard error which one, and how long it took.
#
#   hack/step.sh NAME COMMAND...
set -euo pipefail

name=$1
shift
printf '== %s\n' "$name" >&2
status=0
"$@" || status=$?
if [ "$status" = 0 ]; then
    printf '== %s: done after %d s\n' "$name" "$SECONDS" >&2
else
    printf '== %s: failed after %d s, status %d\n' "$name" "$SECONDS" "$status" >&2
fi
exit "$status"
