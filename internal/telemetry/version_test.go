package telemetry

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionMatchesTheLinkedModule(t *testing.T) {
	other := &debug.Module{Path: "example.org/other", Version: "v9.0.0"}
	for name, c := range map[string]struct {
		build    debug.BuildInfo
		expected string
	}{
		"required":                  {debug.BuildInfo{Deps: []*debug.Module{other, {Path: Scope, Version: "v0.1.0"}}}, "v0.1.0"},
		"the program's own module":  {debug.BuildInfo{Main: debug.Module{Path: Scope, Version: "v0.2.0"}}, "v0.2.0"},
		"replaced by a fork":        {replacedBy("example.org/fork", "v0.3.0"), "v0.3.0"},
		"replaced by a directory":   {replacedBy("../inbox", "(devel)"), "(devel)"},
		"built without information": {debug.BuildInfo{Deps: []*debug.Module{other}}, ""},
	} {
		require.Equal(t, c.expected, versionIn(&c.build), name)
	}
}

func replacedBy(path, version string) debug.BuildInfo {
	return debug.BuildInfo{Deps: []*debug.Module{{Path: Scope, Version: "v0.0.0",
		Replace: &debug.Module{Path: path, Version: version}}}}
}
