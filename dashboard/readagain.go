package dashboard

import (
	"context"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
)

// readAgainFields are the query parameters of reading a topic again.
var readAgainFields = []string{"channel", "topic", "from", "to"}

// confirmReadAgain asks for a period.
func (q *request) confirmReadAgain() error {
	return q.render("read-again", "Read a topic again", "consumers", topicIn(q.query))
}

// startReadAgain begins to read a period, or goes on with what an earlier job has left. It redirects to the progress
// page.
func (q *request) startReadAgain() error {
	fields := only(q.given(), readAgainFields)
	r := envelope.ReadAgain{Channel: fields.Get("channel"), Topic: fields.Get("topic"),
		DryRun: q.r.PostForm.Get("dry") != ""}
	back := "./consumers"
	if id := q.r.PostForm.Get("after"); id != "" {
		seen, ok := q.d.jobs.find(id, q.now())
		if !ok || len(seen.Reread.Left) == 0 {
			return refuse(http.StatusNotFound, "Nothing is left",
				"What is left is known for an hour, to the process that has read. The audit has it, too.", nil)
		}
		r, back = seen.Again, seen.Back
		r.From, r.To, r.Ranges = time.Time{}, time.Time{}, seen.Reread.Left
	} else {
		filter, err := filterOf(only(fields, []string{"from", "to"}))
		if err != nil {
			return err
		}
		if filter.From.IsZero() || r.Channel == "" || r.Topic == "" {
			return badInput("The form does not say which topic, or since when.")
		}
		if r.From, r.To = filter.From, filter.To; r.DryRun {
			back = "./read-again?" + fields.Encode()
		}
	}
	actor := q.actor()
	return q.startJob(jobView{Action: "read-again", Again: r, Back: back}, func(ctx context.Context, j *job) error {
		r.Progress = j.reread
		result, err := q.d.ops.ReadAgain(ctx, actor, r)
		j.reread(result)
		if err != nil {
			err = refuse(http.StatusConflict, "Reading ended early",
				"The audit has the reason. What was accepted until then is kept.", err)
		}
		return err
	})
}

func (j *job) reread(result envelope.ReadAgainResult) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Reread = result
}
