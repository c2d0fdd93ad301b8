package trial

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
)

// profile records this process's CPU usage until stop is called.
func (l *Lab) profile(group, variant string) (stop func() error, err error) {
	if l.Profiles == "" {
		return func() error { return nil }, nil
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune(` /\\:`, r) {
			return '-'
		}
		return r
	}, group+"_"+variant) + ".cpu.prof"
	if err := os.MkdirAll(l.Profiles, 0o755); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	file, err := os.Create(filepath.Join(l.Profiles, name))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
