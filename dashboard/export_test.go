package dashboard

// Routes tells tests outside of the package what the table has.
func Routes() (all []RouteForTest) {
	for _, r := range routes() {
		all = append(all, RouteForTest{r.method, r.path, r.role})
	}
	return all
}

// RouteForTest is a row of it.
type RouteForTest struct {
	Method, Path string
	Role         Role
}

// Samples counts those taken.
func Samples(d *Dashboard) int { return len(d.samples.hour()) }
