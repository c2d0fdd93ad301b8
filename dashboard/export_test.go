package dashboard

// Routes returns the route table for tests outside of the package.
func Routes() (all []RouteForTest) {
	for _, r := range routes() {
		all = append(all, RouteForTest{r.method, r.path, r.role, r.audited})
	}
	return all
}

// RouteForTest is one row of the route table.
type RouteForTest struct {
	Method, Path string
	Role         Role
	Audited      bool
}

// Samples returns how many samples of the last hour are stored.
func Samples(d *Dashboard) int { return len(d.samples.hour()) }
