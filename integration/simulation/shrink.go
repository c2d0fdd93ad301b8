package simulation

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kept says what of a seed's plan is left: so many processes, and these of its messages and events, by their places.
type Kept struct {
	Processes        int
	Messages, Events []int
}

// whole keeps everything.
func whole(p Plan) Kept {
	k := Kept{Processes: p.Processes}
	for i := range p.Messages {
		k.Messages = append(k.Messages, i)
	}
	for i := range p.Events {
		k.Events = append(k.Events, i)
	}
	return k
}

// String returns what ParseKept reads, for example "2/0,3/7".
func (k Kept) String() string {
	list := func(numbers []int) string {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
	}
	return fmt.Sprintf("%d/%s/%s", k.Processes, list(k.Messages), list(k.Events))
}

// ParseKept reads what String returns.
func ParseKept(text string) (k Kept, err error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return k, fmt.Errorf("%q is not processes/messages/events", text)
	}
	number := func(text string) (n int) {
		if err == nil {
			n, err = strconv.Atoi(text)
		}
		return n
	}
	list := func(text string) (numbers []int) {
		for one := range strings.SplitSeq(text, ",") {
			if one != "" {
				numbers = append(numbers, number(one))
			}
		}
		return numbers
	}
	k.Processes, k.Messages, k.Events = number(parts[0]), list(parts[1]), list(parts[2])
	return k, err
}

// Only returns the part of a plan that is kept.
func (p Plan) Only(k Kept) Plan {
	messages, events := p.Messages, p.Events
	p.Processes, p.Messages, p.Events = k.Processes, nil, nil
	for i, m := range messages {
		if slices.Contains(k.Messages, i) {
			p.Messages = append(p.Messages, m)
		}
	}
	for i, e := range events {
		if slices.Contains(k.Events, i) {
			p.Events = append(p.Events, e)
		}
	}
	return p
}

// details are what differs between two breaches of one promise.
var details = regexp.MustCompile(`\b(m\d+|own\d+|[a-z]\.\d+|\d+)\b`)

// kindsOf returns which promises a run has broken.
func kindsOf(r Report) (kinds []string) {
	for _, broken := range r.Broken {
		kinds = append(kinds, details.ReplaceAllString(broken, "#"))
	}
	return kinds
}

// Shrink returns a small part of a plan whose run breaks one of the promises that the whole breaks, and its report. run
// runs a plan. Runs of one plan can differ, so each part is tried a few times. more ends the search when it is false.
func Shrink(plan Plan, failed Report, run func(Plan) Report, more func() bool) (Kept, Report) {
	const tries = 4
	wanted := kindsOf(failed)
	kept := whole(plan)
	try := func(k Kept) bool {
		for i := 0; i < tries && more(); i++ {
			report := run(plan.Only(k))
			if slices.ContainsFunc(kindsOf(report), func(kind string) bool { return slices.Contains(wanted, kind) }) {
				kept, failed = k, report
				return true
			}
		}
		return false
	}
	for again := true; again && more(); {
		again = false
		for size := max(len(kept.Messages), len(kept.Events)); size > 0; size /= 2 {
			for _, list := range []func(*Kept) *[]int{
				func(k *Kept) *[]int { return &k.Events }, func(k *Kept) *[]int { return &k.Messages },
			} {
				for from := 0; from < len(*list(&kept)); {
					k := kept
					l := list(&k)
					*l = slices.Delete(slices.Clone(*l), from, min(from+size, len(*l)))
					if try(k) {
						again = true
					} else {
						from += size
					}
				}
			}
		}
		if k := kept; k.Processes > 1 {
			k.Processes--
			again = try(k) || again
		}
	}
	return kept, failed
}
