package endtoend

import "testing"

// newPortableRig is newRig with the portable profile in every worker and inbox.
func newPortableRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.settings.Portable = true
	return r
}

// TestClaimsOfKilledWorkerResumeElsewhereInThePortableProfile proves contract 2 ("crash") and 5.9 without advisory
// locks. No worker sees who holds a row's lock: the server rolls a killed worker's transactions back.
func TestClaimsOfKilledWorkerResumeElsewhereInThePortableProfile(t *testing.T) {
	t.Parallel()
	checkClaimsOfKilledWorkerResume(newPortableRig(t))
}

// TestLanesKeepTheirOrderInThePortableProfile proves contract 5.12 there.
func TestLanesKeepTheirOrderInThePortableProfile(t *testing.T) {
	t.Parallel()
	checkLanesKeepTheirOrder(newPortableRig(t))
}
