package dashboard

import (
	"net/url"
	"strconv"
)

// notice is the result of the last action, shown on the page after it. It comes from that page's
// address, which anybody can write, so it is one of the fixed texts, with numbers.
type notice struct {
	Text string
	Bad  bool
	// Done and Left are how many statuses an action on several changed and skipped.
	Done, Left int
	Counted    bool
}

var noticeFields = []string{"said", "done", "left"}

var noticeTexts = map[string]notice{
	"retried":         {Text: "Retried: due now."},
	"discarded":       {Text: "Discarded: it will not run again."},
	"retried-some":    {Text: "Retried.", Counted: true},
	"discarded-some":  {Text: "Discarded.", Counted: true},
	"paused":          {Text: "Paused: workers stop claiming within a heartbeat. Running handlers continue."},
	"resumed":         {Text: "Resumed: workers claim again within a heartbeat."},
	"not-paused":      {Text: "It was not paused: nothing was done."},
	"accepted":        {Text: "Accepted: the record is now a message and no longer rejected."},
	"known":           {Text: "Duplicate: the message had been accepted before. The record is no longer rejected."},
	"unrouted":        {Text: "Accepted, but no handler subscribes to its type."},
	"deleted":         {Text: "Deleted."},
	"replayed":        {Text: "Replayed: this is the new message."},
	"ended":           {Text: "Stopping: the current chunk is completed or rolled back as a whole."},
	"nothing-chosen":  {Text: "Nothing was selected.", Bad: true},
	"already-stopped": {Text: "It had already ended."},
}

func noticeIn(query url.Values) *notice {
	s, ok := noticeTexts[query.Get("said")]
	if !ok {
		return nil
	}
	if s.Counted {
		s.Done, _ = strconv.Atoi(query.Get("done"))
		s.Left, _ = strconv.Atoi(query.Get("left"))
		s.Bad = s.Done == 0
	}
	return &s
}

func noticeQuery(what string) url.Values { return url.Values{"said": {what}} }
