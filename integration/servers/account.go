package servers

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is the operating system account that a server runs as.
type account struct {
	name     string
	uid, gid uint32
}

// unprivilegedAccount returns nil if this process does not run as root. PostgreSQL refuses to run
// as root, so root uses the account "postgres", or else "nobody".
func unprivilegedAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var failed []error
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			failed = append(failed, fmt.Errorf("account %s: %w", name, err))
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("no unprivileged account to run as: %w", errors.Join(failed...))
}

// own changes the owner of a file or directory to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}
