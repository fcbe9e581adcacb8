// Command schema checks dashboards against Grafana's own schema: no field that it does not know, none missing that it
// requires.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	status := 0
	for _, path := range os.Args[1:] {
		// An empty list of findings is an error without text.
		if err := check(path); err != nil && err.Error() != "" {
			fmt.Fprintf(os.Stderr, "%s:\n%v\n", path, err)
			status = 1
		}
	}
	os.Exit(status)
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var board dashboard.Dashboard
	if err := board.UnmarshalJSONStrict(text); err != nil {
		return err
	}
	return board.Validate()
}
