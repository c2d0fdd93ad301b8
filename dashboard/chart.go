package dashboard

import (
	"fmt"
	"strings"
	"time"
)

// chart is a line over the last hour, as coordinates for an SVG.
type chart struct {
	// Lines are the points of each line segment, and Areas those of the area below it. There are
	// several segments where samples are missing in between.
	Lines []string
	Areas []string
	// DotX and DotY are the position of the last point.
	DotX, DotY string
	Some       bool
	// Lowest and Highest are the extremes of the hour, formatted.
	Lowest, Highest string
}

// The size of a chart's view box. chartMargin keeps the last point away from the edge.
const (
	chartWidth  = 240
	chartHeight = 44
	chartMargin = 3
)

// drawn plots one value of the samples on an axis that starts at zero. The line is interrupted
// where samples are more than six intervals apart, because nothing was recorded there.
func drawn(samples []sample, now time.Time, value func(sample) int64, words func(int64) string) chart {
	var c chart
	if len(samples) == 0 {
		return c
	}
	lowest, highest := value(samples[0]), value(samples[0])
	for _, s := range samples {
		lowest, highest = min(lowest, value(s)), max(highest, value(s))
	}
	c.Some, c.Lowest, c.Highest = true, words(lowest), words(highest)
	x := func(s sample) float64 {
		part := 1 - float64(now.Sub(s.at))/float64(window)
		return chartMargin + part*(chartWidth-2*chartMargin)
	}
	y := func(s sample) float64 {
		return chartHeight - chartMargin - float64(value(s))/float64(max(highest, 1))*(chartHeight-2*chartMargin)
	}
	from := 0
	for i, s := range samples {
		if i+1 < len(samples) && samples[i+1].at.Sub(s.at) <= 6*sampleEvery {
			continue
		}
		var points strings.Builder
		for _, p := range samples[from : i+1] {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(p), y(p))
		}
		c.Lines = append(c.Lines, strings.TrimSpace(points.String()))
		c.Areas = append(c.Areas, fmt.Sprintf("%.1f,%d %s%.1f,%d", x(samples[from]), chartHeight, points.String(), x(s),
			chartHeight))
		from = i + 1
	}
	last := samples[len(samples)-1]
	c.DotX, c.DotY = fmt.Sprintf("%.1f", x(last)), fmt.Sprintf("%.1f", y(last))
	return c
}
