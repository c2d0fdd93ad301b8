package sealing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gorm-inbox/inbox/handler"
)

//page:begin claims

// Claims keeps large contents in a directory, as in a bucket, and stores their names.
type Claims struct {
	Store *os.Root
	// Least is the size from which on a content is large.
	Least int
}

// Seal implements handler.Sealer. The name is the content's hash: to seal a content again changes nothing. The object
// is on disk when Seal returns, because the record's offset may be committed right after.
func (c *Claims) Seal(_ context.Context, _ handler.Identity, content []byte) ([]byte, string, error) {
	if len(content) < c.Least {
		return nil, "", nil // it is stored as it is
	}
	name, part := fmt.Sprintf("%x", sha256.Sum256(content)), rand.Text()
	file, err := c.Store.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, "", err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, "", errors.Join(err, c.Store.Remove(part))
	}
	if err := c.Store.Rename(part, name); err != nil {
		return nil, "", err
	}
	directory, err := c.Store.Open(".")
	if err != nil {
		return nil, "", err
	}
	return []byte(name), "claim", errors.Join(directory.Sync(), directory.Close())
}

// Open implements handler.Sealer.
func (c *Claims) Open(_ context.Context, _ handler.Identity, _ string, sealed []byte) ([]byte, error) {
	name := string(sealed)
	content, err := c.Store.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, handler.Poison(err)
	case err != nil:
		return nil, err
	case fmt.Sprintf("%x", sha256.Sum256(content)) != name:
		return nil, handler.Poison(fmt.Errorf("object %s has another content", name))
	}
	return content, nil
}

//page:end
