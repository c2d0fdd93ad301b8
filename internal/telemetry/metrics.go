package telemetry

// Metric describes one instrument, for those who make dashboards and docs.
type Metric struct {
	Name, Unit, Description string
	// Kind is "counter", "histogram" or "gauge".
	Kind string
	// Counts is the field of handler.Counts that a counter shows; empty for others,
	// and for what cleanup deleted, which Deleted tells.
	Counts string
}

// Metrics lists all instruments there are.
func Metrics() []Metric {
	var all []Metric
	for _, d := range eventInstruments {
		all = append(all, Metric{d.name, d.unit, d.description, "counter", d.field})
	}
	all = append(all, Metric{cleanupDeleted.name, cleanupDeleted.unit, cleanupDeleted.description, "counter", ""})
	for _, d := range []instrument{acceptDuration, waitDuration, runDuration, cleanupDuration} {
		all = append(all, Metric{d.name, d.unit, d.description, "histogram", ""})
	}
	for _, d := range []instrument{backlogDue, backlogWaiting, backlogProcessing, backlogPoisoned, oldestDueAge,
		oldestRunningAge, handlerPaused, liveWorkers, sampleAge,
		consumerLag, consumerHalted, healthState} {
		all = append(all, Metric{d.name, d.unit, d.description, "gauge", ""})
	}
	return all
}
