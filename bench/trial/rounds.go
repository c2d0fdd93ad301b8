package trial

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ordinaryRounds is from how many rounds on a run is more than a glance.
const ordinaryRounds = 3

// rounds are the variants of each round: of the first ones all, of those that a
// line's Times adds its own alone.
func (l *Lab) rounds(g Group) ([][]Variant, error) {
	times, err := g.times()
	if err != nil {
		return nil, err
	}
	glance := l.Quick || l.Tiny || l.Rounds < ordinaryRounds
	rounds := slices.Repeat([][]Variant{g.Variants}, l.Rounds)
	for more := 2; !glance; more++ {
		chosen := slices.DeleteFunc(slices.Clone(g.Variants), func(v Variant) bool { return times[v.Name] < more })
		if len(chosen) == 0 {
			break
		}
		rounds = append(rounds, slices.Repeat([][]Variant{chosen}, l.Rounds)...)
	}
	return rounds, nil
}

// times is by how much each variant's rounds are multiplied. What a line compares
// has to be measured in the same rounds.
func (g Group) times() (map[string]int, error) {
	times := map[string]int{}
	for _, line := range g.Lines {
		for _, v := range line.variants {
			times[v] = max(1, times[v], line.times)
		}
	}
	for _, line := range g.Lines {
		for _, v := range line.variants {
			if first := line.variants[0]; times[v] != times[first] {
				return nil, fmt.Errorf("%s: %s: another line has %q measured %d times as often and %q %d times", g.Name, line.Name, first, times[first], v, times[v])
			}
		}
	}
	return times, nil
}

// more says which variants have further rounds, for the reader of the table.
func (l *Lab) more(rounds [][]Variant) string {
	if len(rounds) == l.Rounds {
		return ""
	}
	last := rounds[len(rounds)-1]
	if len(last) == len(rounds[0]) {
		return fmt.Sprintf("; %d rounds", len(rounds))
	}
	names := make([]string, len(last))
	for i, v := range last {
		names[i] = strconv.Quote(v.Name)
	}
	return fmt.Sprintf("; %d rounds of %s", len(rounds), strings.Join(names, ", "))
}

// turn is which of n variants is the i-th of a round. Each round begins with
// another, so that none always runs first, and every other round goes backwards,
// so that none always runs behind the same one.
func turn(round, i, n int) int {
	if round%2 == 1 {
		i = n - i
	}
	return (round + i) % n
}
