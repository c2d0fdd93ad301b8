package pgproxy

import (
	"math/rand/v2"
	"strings"
)

// Fault is what happens to one exchange with the database.
type Fault int

// The ways an exchange can go wrong.
const (
	// AnswerLost: the database has done it, the connection ends before it can
	// say so.
	AnswerLost Fault = iota + 1
	// RequestLost: the connection ends before the database hears of it.
	RequestLost
	// AnswerSilent: the database has done it, its answer never comes and the
	// connection stays open until the client gives it up.
	AnswerSilent
	// ConnectionLost: the database hears of it, and the client's connection
	// ends at once: the database may still be at it when the client looks. No
	// request to cancel it arrives.
	ConnectionLost
)

// String is the fault's name.
func (f Fault) String() string {
	return [...]string{"no fault", "answer lost", "request lost", "answer silent", "connection lost"}[f]
}

// lossyEvery answers one is lost, when they are.
const lossyEvery = 40

type rule struct {
	fault   Fault
	left    int
	matches func(sql string) bool
}

// Commit matches the end of a transaction.
func Commit(sql string) bool { return strings.EqualFold(strings.TrimRight(sql, "; "), "commit") }

// Containing matches statements that contain all these texts.
func Containing(texts ...string) func(sql string) bool {
	return func(sql string) bool {
		for _, text := range texts {
			if !strings.Contains(sql, text) {
				return false
			}
		}
		return true
	}
}

// Lose makes the fault happen to the next n statements, on whichever
// connections, that matches tells by their text; a prepared statement is
// matched each time it is executed. Earlier rules are asked first.
func (p *Proxy) Lose(fault Fault, n int, matches func(sql string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule{fault: fault, left: n, matches: matches})
}

// LoseCommits makes the fault happen to the next n commits.
func (p *Proxy) LoseCommits(fault Fault, n int) { p.Lose(fault, n, Commit) }

// CutAfterCommit cuts the connection of the next commit. If forward, the
// database has committed and its answer is lost; if not, the database never
// hears of the commit and rolls back.
func (p *Proxy) CutAfterCommit(forward bool) {
	if forward {
		p.LoseCommits(AnswerLost, 1)
	} else {
		p.LoseCommits(RequestLost, 1)
	}
}

// Left is how many faults asked for by Lose have not happened yet.
func (p *Proxy) Left() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		n += r.left
	}
	return n
}

// Mend takes back all faults that have not happened yet.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.lossy = nil, nil
}

// LoseAnswers loses answers of all kinds at random, about one in forty, or
// none any more if seed is 0.
func (p *Proxy) LoseAnswers(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy = nil
	if seed > 0 {
		p.lossy = rand.New(rand.NewPCG(seed, seed))
	}
}

// AnswersLost is how many answers LoseAnswers has lost so far.
func (p *Proxy) AnswersLost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// fault says what happens to a statement that is executed now.
func (p *Proxy) fault(sql string) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.left > 0 && r.matches(sql) {
			r.left--
			return r.fault
		}
	}
	return 0
}

// losesThis decides at random about an exchange to which nothing else happens.
func (p *Proxy) losesThis() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lossy == nil || p.lossy.IntN(lossyEvery) != 0 {
		return false
	}
	p.lost++
	return true
}

func (p *Proxy) lose(key []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[string(key)] = true
}

func (p *Proxy) isLost(key []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone[string(key)]
}
