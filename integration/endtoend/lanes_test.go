package endtoend

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

const (
	laneCount = 200
	laneSteps = 12
)

// laneLoad returns all steps of all lanes, each lane in order and the lanes mixed.
func laneLoad(random *rand.Rand) []handler.RawMessage {
	next := make([]int, laneCount)
	messages := make([]handler.RawMessage, 0, laneCount*laneSteps)
	for len(messages) < cap(messages) {
		lane := random.IntN(laneCount)
		if next[lane] == laneSteps {
			continue
		}
		next[lane]++
		step := workload.Step{Lane: string(rune('A'+lane/26)) + string(rune('a'+lane%26)), N: next[lane]}
		switch random.IntN(12) {
		case 0:
			step.Fails = 1 + random.IntN(2)
		case 1:
			step.Snoozes = true
		}
		messages = append(messages, step.Message())
	}
	return messages
}

// TestLanesKeepTheirOrderAcrossKillsRetriesAndRenames proves contract 5.12 with real processes.
// Four workers are killed at random while a rolling deploy renames the handlers twice, so that
// generations run concurrently.
func TestLanesKeepTheirOrderAcrossKillsRetriesAndRenames(t *testing.T) {
	t.Parallel()
	checkLanesKeepTheirOrder(newRig(t))
}

func checkLanesKeepTheirOrder(r *rig) {
	t := r.t
	random := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	generation := func(g workload.Generation) func(*workload.Settings) {
		return func(s *workload.Settings) { s.Generation = g }
	}
	producer := func(g workload.Generation) *inbox.Inbox {
		settings := r.settings
		r.settings.Generation = g
		defer func() { r.settings = settings }()
		return r.newInbox(r.settings.DSN)
	}
	workers := make([]*workload.Worker, 4)
	for i := range workers {
		workers[i] = r.worker(generation(workload.Original))
	}
	load := laneLoad(random)
	kills := 0
	for part, producers := range [][]*inbox.Inbox{
		{producer(workload.Original)},
		{producer(workload.Original), producer(workload.Renamed)}, // both accept, as during a rollout
		{producer(workload.Renamed), producer(workload.RenamedTwice)},
	} {
		third := load[part*len(load)/3 : (part+1)*len(load)/3]
		for i := 0; i < len(third); i += 40 {
			r.accept(producers[random.IntN(len(producers))], third[i:min(i+40, len(third))]...)
			if i%200 == 0 {
				victim := random.IntN(len(workers))
				require.NoError(t, workers[victim].Kill())
				kills++
				next := workload.Original + workload.Generation(min(part+random.IntN(2), 2))
				workers[victim] = r.worker(generation(next))
			}
		}
	}
	// Statuses under the newest key need a worker that knows it.
	require.NoError(t, workers[0].Kill())
	workers[0] = r.worker(generation(workload.RenamedTwice))
	r.await("everything is completed", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NULL`) == 0
	})
	verdict, err := workload.ReadLanes(t.Context(), r.db, len(load))
	require.NoError(t, err)
	t.Logf("%d kills; %+v", kills, verdict)
	require.Equal(t, workload.LaneVerdict{Lanes: laneCount, Steps: len(load), Reruns: verdict.Reruns}, verdict)
	require.Equal(t, len(load)*2, r.number(`SELECT count(*) FROM inbox_handler_statuses`))
}

// TestLaneVerdictFindsMissingDoubledAndMisorderedMessages checks that the judge finds the errors that
// it exists for.
func TestLaneVerdictFindsMissingDoubledAndMisorderedMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	insert := func(handler string, ns ...int) {
		for _, n := range ns {
			_, err := r.db.ExecContext(t.Context(), `INSERT INTO steps (handler, lane, n, pid) VALUES ($1, 'a', $2, 1)`, handler,
				n)
			require.NoError(t, err)
		}
	}
	insert("tx", 1, 2, 3)
	insert("plain", 1, 2, 2, 3)
	verdict, err := workload.ReadLanes(t.Context(), r.db, 3)
	require.NoError(t, err)
	require.Equal(t, workload.LaneVerdict{Lanes: 1, Steps: 3, Reruns: 1}, verdict)

	_, err = r.db.ExecContext(t.Context(), `TRUNCATE steps`)
	require.NoError(t, err)
	insert("tx", 1, 3, 3)
	insert("plain", 1, 2, 3, 2)
	verdict, err = workload.ReadLanes(t.Context(), r.db, 4)
	require.NoError(t, err)
	require.Equal(t, workload.LaneVerdict{Lanes: 1, Steps: 3, Missing: 3, OutOfOrder: 2, TxOutOfOrder: 1, Doubled: 1,
		Reruns: 1}, verdict)
}
