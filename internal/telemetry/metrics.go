package telemetry

// Metric describes one instrument, for dashboards and documentation.
type Metric struct {
	Name, Unit, Description string
	// Kind is "counter", "histogram" or "gauge".
	Kind string
	// Counts is the field of handler.Counts that a counter shows. It is empty for other instruments, and for the
	// counter of deleted rows, which handler.Deleted reports.
	Counts string
}

// Metrics returns all instruments.
func Metrics() []Metric {
	var all []Metric
	for _, d := range eventInstruments {
		all = append(all, Metric{d.name, d.unit, d.description, "counter", d.field})
	}
	all = append(all, Metric{cleanupDeleted.name, cleanupDeleted.unit, cleanupDeleted.description, "counter", ""})
	for _, d := range []instrument{acceptDuration, waitDuration, runDuration, completionDuration, cleanupDuration} {
		all = append(all, Metric{d.name, d.unit, d.description, "histogram", ""})
	}
	for _, d := range []instrument{backlogDue, backlogWaiting, backlogProcessing, backlogPoisoned, oldestDueAge,
		oldestRunningAge, handlerPaused, liveWorkers, sampleAge,
		consumerLag, consumerHalted, healthState} {
		all = append(all, Metric{d.name, d.unit, d.description, "gauge", ""})
	}
	return all
}
