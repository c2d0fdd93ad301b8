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
func (l *Lab) rounds(g Group) [][]Variant {
	rounds := slices.Repeat([][]Variant{g.Variants}, l.Rounds)
	for times := 2; ; times++ {
		chosen := slices.DeleteFunc(slices.Clone(g.Variants), func(v Variant) bool {
			return !slices.ContainsFunc(g.Lines, func(line Line) bool {
				return l.times(line) >= times && slices.Contains(line.variants, v.Name)
			})
		})
		if len(chosen) == 0 {
			return rounds
		}
		rounds = append(rounds, slices.Repeat([][]Variant{chosen}, l.Rounds)...)
	}
}

// times is by how much the rounds of a line's variants are multiplied.
func (l *Lab) times(line Line) int {
	if l.Quick || l.Tiny || l.Rounds < ordinaryRounds {
		return 1
	}
	return max(1, line.times)
}

// limited are a group's lines, each with the rounds that all of its variants have:
// one of them may have more for another line.
func (l *Lab) limited(lines []Line) []Line {
	lines = slices.Clone(lines)
	for i := range lines {
		lines[i].rounds = l.Rounds * l.times(lines[i])
	}
	return lines
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
