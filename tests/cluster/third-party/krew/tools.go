//go:build tools

// Package tools names krew, which installs kubectl's plugins: a test installs Weft's with it.
package tools

import (
	_ "sigs.k8s.io/krew/cmd/krew"
)
