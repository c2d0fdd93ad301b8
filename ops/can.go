package ops

import "fmt"

// Can reports whether this Ops supports an action, regardless of the actor and the target. It
// returns nil, or the error that the action's method always returns: ErrNeedsApplication or, with
// the application, ErrReplayOff. All actions but Replay, ReAccept and Cleanup need only the tables.
// Can is for user interfaces, so that they offer only what works; the methods check for themselves
// (contract 11.1).
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
