package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListsReadTheReplicaAndSayIt proves contract 11.7. The replica is the database itself.
func TestListsReadTheReplicaAndSayIt(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("no mail server", "m")
		rejected := r.reject(1, nil, []byte("x"))
		alone := r.done("list", "-o", "json")
		require.NotContains(t, alone.errOut, "Read from")

		r.env[replicaVariable] = r.env[dsnVariable]
		const says = "Read from a replica, 0s behind.\n"
		require.Equal(t, alone.out, r.done("list", "-o", "json").out)
		for _, args := range [][]string{{"list"}, {"list", "--count"}, {"list", "--export", "csv"}, {"show", "m"}, {"failures"},
			{"rejected", "list"}, {"rejected", "show", rejected}, {"gaps"}, {"markers", "m"}, {"audit"}} {
			require.Contains(t, r.done(args...).errOut, says, "%v", args)
		}
		for _, args := range [][]string{{"status"}, {"workers"}, {"handlers"}, {"retry", "m", "--yes"}, {"list", "--replica="}} {
			require.NotContains(t, r.done(args...).errOut, "Read from", "%v", args)
		}
		out := r.run("list", "--replica", "nothing of the kind://")
		require.Equal(t, exitMisuse, out.code)
		require.Contains(t, out.errOut, "--replica: the DSN must be")
	})
}
