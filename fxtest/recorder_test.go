package fxtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"

	"github.com/gorm-inbox/inbox/fxtest"
)

// recorder is a test that is expected to fail. It records the failure's text.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, a ...any) {
	r.said = append(r.said, fmt.Sprintf(format, a...))
}
func (r *recorder) Fatal(a ...any)                 { r.Fatalf("%s", fmt.Sprint(a...)) }
func (r *recorder) Fatalf(format string, a ...any) { r.Errorf(format, a...); r.FailNow() }
func (r *recorder) FailNow()                       { panic(r) }

// run returns the text with which a test fails. It fails if the test does not.
func run(t *testing.T, test func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(r) {
				panic(v)
			}
		}()
		test(r)
	}()
	require.NotEmpty(t, r.said, "the test did not fail")
	return strings.Join(r.said, "\n")
}

// failure returns the text with which a requirement on kit fails, where kit belongs to another
// test.
func failure(t *testing.T, kit *fxtest.Kit, requirement func(k *fxtest.Kit)) string {
	t.Helper()
	return run(t, func(r testing.TB) {
		var own *fxtest.Kit
		app := fx.New(fx.NopLogger, fx.Supply(kit.Inbox), fxtest.Use(r, "", &own))
		require.NoError(t, app.Err())
		own.Clock = kit.Clock
		requirement(own)
	})
}
