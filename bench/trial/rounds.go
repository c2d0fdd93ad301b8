package trial

import (
	"fmt"
	"slices"
	"strings"
)

// ordinaryRounds is the number of rounds from which a run counts as thorough.
const ordinaryRounds = 3

// rounds returns the variants of each round. The first rounds have all variants. Rounds that a
// line's Times adds have only that line's variants.
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

// times returns by how much the rounds of a line's variants are multiplied.
func (l *Lab) times(line Line) int {
	if l.Quick || l.Tiny || l.Rounds < ordinaryRounds {
		return 1
	}
	return max(1, line.times)
}

// limited returns a group's lines, each with the number of rounds that all of its variants have. A
// variant may have more rounds for another line.
func (l *Lab) limited(lines []Line) []Line {
	lines = slices.Clone(lines)
	for i := range lines {
		lines[i].rounds = l.Rounds * l.times(lines[i])
	}
	return lines
}

// more describes the additional rounds for the reader of the table: how many there were for which lines.
func (l *Lab) more(g Group, rounds [][]Variant) string {
	if len(rounds) == l.Rounds {
		return ""
	}
	var names []string
	for _, line := range g.Lines {
		if l.Rounds*l.times(line) == len(rounds) {
			names = append(names, "`"+line.Name+"`")
		}
	}
	return fmt.Sprintf("; %d rounds for %s", len(rounds), strings.Join(names, ", "))
}

// turn returns which of n variants is the i-th of a round. Each round begins with another variant,
// so that none always runs first. Every other round runs backwards, so that no variant always
// follows the same one.
func turn(round, i, n int) int {
	if round%2 == 1 {
		i = n - i
	}
	return (round + i) % n
}
