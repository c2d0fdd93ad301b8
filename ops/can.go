package ops

import "fmt"

// Can says whether this Ops can take an action, whoever asks and whatever it is
// taken on: nil, or what its method returns each time, which is
// ErrNeedsApplication or, with the application, ErrReplayOff. All actions but Replay, ReAccept and Cleanup work on the
// tables alone. It is for interfaces, so that they offer what there is; the
// methods check for themselves (contract 11.1).
func (o *Ops) Can(action Action) error {
	able := true
	switch action {
	case ActionReplay:
		able = o.live != nil
		if able && !o.opts.AllowReplay {
			return fmt.Errorf("%s: %w: it needs the option AllowReplay", action, ErrReplayOff)
		}
	case ActionReAccept:
		able = o.live != nil
	case ActionCleanup:
		able = o.opts.Cleanup != nil
	}
	if !able {
		return fmt.Errorf("%s: %w: act through Inbox.Ops in its process, or through its dashboard", action,
			ErrNeedsApplication)
	}
	return nil
}
