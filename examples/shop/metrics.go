package main

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

// Metrics is where metrics go: OpenTelemetry's, for Prometheus to come for.
type Metrics struct {
	Provider *metric.MeterProvider
	Handler  http.Handler
}

// NewMetrics makes them. Shut the provider down.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &Metrics{metric.NewMeterProvider(metric.WithReader(reader)),
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}, nil
}
