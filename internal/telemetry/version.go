package telemetry

import (
	"runtime/debug"
	"sync"
)

// Version returns the version of this module in the running program, as its go.mod requires it. It is "(devel)" if a
// directory replaces the module, and empty if the program was built without module information.
var Version = sync.OnceValue(func() string {
	build, known := debug.ReadBuildInfo()
	if !known {
		return ""
	}
	return versionIn(build)
})

func versionIn(build *debug.BuildInfo) string {
	for _, m := range append(build.Deps, &build.Main) {
		if m.Path != Scope {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}
