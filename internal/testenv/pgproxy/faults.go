package pgproxy

import (
	"math/rand/v2"
	"strings"
)

// Fault is a failure of one exchange with the database.
type Fault int

// The faults of an exchange.
const (
	// AnswerLost ends the connection after the database has executed the statement and before its
	// answer arrives.
	AnswerLost Fault = iota + 1
	// RequestLost ends the connection before the database receives the statement.
	RequestLost
	// AnswerSilent drops the answer of an executed statement. The connection stays open until the
	// client closes it.
	AnswerSilent
	// ConnectionLost forwards the statement and ends the client's connection at once. The database
	// may still be executing it when the client checks. Cancel requests for it are dropped.
	ConnectionLost
	// Silence swallows the statement and everything after it in both directions, as a firewall does
	// that has forgotten a connection. The server's side stays open even after the client has closed
	// its own. Cancel requests for the connection are dropped.
	Silence
	// SilenceMidway is Silence after the server has received the beginning of the statement, which
	// has to be one of the extended protocol: everything but what executes it.
	SilenceMidway
)

// String returns the fault's name.
func (f Fault) String() string {
	return [...]string{"no fault", "answer lost", "request lost", "answer silent", "connection lost",
		"silence", "silence midway"}[f]
}

// lossyEvery is how many answers there are for each one that is lost at random.
const lossyEvery = 40

type rule struct {
	fault   Fault
	left    int
	matches func(sql string) bool
}

// Commit reports whether a statement commits a transaction.
func Commit(sql string) bool { return strings.EqualFold(strings.TrimRight(sql, "; "), "commit") }

// Containing returns a matcher for statements that contain all of these texts.
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

// Lose applies the fault to the next n statements that matches accepts by their text, on any
// connection. A prepared statement is matched each time it is executed. Earlier rules take
// precedence.
func (p *Proxy) Lose(fault Fault, n int, matches func(sql string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule{fault: fault, left: n, matches: matches})
}

// LoseCommits applies the fault to the next n commits.
func (p *Proxy) LoseCommits(fault Fault, n int) { p.Lose(fault, n, Commit) }

// Left returns how many faults requested by Lose have not happened yet.
func (p *Proxy) Left() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		n += r.left
	}
	return n
}

// Mend removes all faults that have not happened yet.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules, p.lossy = nil, nil
}

// LoseAnswers loses answers of all kinds at random, about one in forty. A seed of 0 ends that.
func (p *Proxy) LoseAnswers(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy = nil
	if seed > 0 {
		p.lossy = rand.New(rand.NewPCG(seed, seed))
	}
}

// AnswersLost returns how many answers LoseAnswers has lost so far.
func (p *Proxy) AnswersLost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// fault returns the fault of a statement whose message is about to be forwarded. Before the message
// that executes a statement, that is Silence or none.
func (p *Proxy) fault(sql string, executes bool) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.left > 0 && (executes || r.fault == Silence) && r.matches(sql) {
			r.left--
			return r.fault
		}
	}
	return 0
}

// losesThis decides at random whether the answer of an exchange without another fault is lost.
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
