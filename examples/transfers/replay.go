package main

// Replay is what the accounts should have after transfers that were booked
// one by one in the order of their acceptance.
type Replay struct {
	Accounts map[int]Account
	Balances map[int]int64
	Refused  map[string]bool // by transfer ID
}

// NewReplay books transfers between accounts 1 to n with the opening balance.
func NewReplay(transfers []Transfer, n int, opening int64) *Replay {
	r := &Replay{Accounts: map[int]Account{}, Balances: map[int]int64{}, Refused: map[string]bool{}}
	for id := 1; id <= n; id++ {
		r.Accounts[id] = Account{ID: id, Available: opening}
		r.Balances[id] = opening
	}
	for _, t := range transfers {
		payer := r.Accounts[t.From]
		payer.Transfers++
		if payer.Available < t.Cents {
			r.Refused[t.ID] = true
		} else {
			payer.Available -= t.Cents
			r.Balances[t.From] -= t.Cents
			r.Balances[t.To] += t.Cents
		}
		r.Accounts[t.From] = payer
	}
	return r
}
