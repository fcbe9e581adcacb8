#!/usr/bin/env bash
# Takes the pictures of the fabric's page that the documents show: docs/images/page.png and page-dark.png.
#
#   hack/screenshots.sh
#
# `weft play --ui` sends 512 MiB through a small fabric whose second spine fails, and Chromium opens the page meanwhile. It
# needs `make play`'s build, and Chromium: apt-get install --no-install-recommends chromium-headless-shell.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'screenshots: %s\n' "$*" >&2; exit 1; }
browser=$(command -v chromium-headless-shell || command -v chromium || command -v google-chrome) ||
    fail "there is no Chromium: apt-get install --no-install-recommends chromium-headless-shell"
weft=${CARGO_TARGET_DIR:-target}/play/weft
[ -x "$weft" ] || fail "there is no $weft: make play"

scratch=$(mktemp -d)
"$weft" play --ui --size 512MiB --rate 200mbit --fail-spine 1@3s </dev/null >"$scratch/log" 2>&1 &
play=$!
# It answers the signal with a status of its own.
end() {
    if kill -INT $play 2>/dev/null; then wait $play || printf 'screenshots: weft play has ended by the signal\n' >&2; fi
    rm -rf "$scratch"
}
trap end EXIT

page=
for _ in $(seq 100); do
    page=$(sed -n "s/.*the fabric's page: //p" "$scratch/log")
    [ -z "$page" ] || break
    kill -0 $play 2>/dev/null || fail "weft play has ended: $(cat "$scratch/log")"
    sleep 0.1
done
[ -n "$page" ] || fail "weft play names no page: $(cat "$scratch/log")"
# The spine has failed by then, and the job goes on.
sleep 6

# shoot FILE FLAGS...: the page as it is now.
shoot() {
    local file=$1
    shift
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1020 --timeout=2000 "$@" \
        --screenshot="$scratch/$file" "$page" >"$scratch/browser" 2>&1 ||
        fail "Chromium took no picture: $(tail -n 5 "$scratch/browser")"
    mv "$scratch/$file" "docs/images/$file"
    printf 'docs/images/%s\n' "$file"
}
shoot page.png --blink-settings=preferredColorScheme=1
shoot page-dark.png --blink-settings=preferredColorScheme=0
