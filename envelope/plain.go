package envelope

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/brief"
)

// contentTypeHeader is the name that the CloudEvents Kafka binding and most producers use.
const contentTypeHeader = "content-type"

// plain takes a record as it is.
func (d *Decoder) plain(r Record) (decoded, error) {
	typ := d.cfg.Type
	if d.cfg.TypeHeader != "" {
		if value := header(r.Headers, d.cfg.TypeHeader); value != "" {
			typ = value
		}
		if typ == "" {
			return decoded{}, fmt.Errorf("%w: no header %q", ErrMissingType, d.cfg.TypeHeader)
		}
	}
	if err := checkText(typ); err != nil {
		return decoded{}, fmt.Errorf("message type %q %w", brief.Name(typ), err)
	}
	source := d.cfg.Source
	if source == "" {
		source = "kafka:" + r.Topic
	}
	contentType := header(r.Headers, contentTypeHeader)
	if contentType == "" {
		contentType = d.cfg.ContentType
	}
	if err := checkText(contentType); err != nil {
		return decoded{}, fmt.Errorf("content type %q %w", brief.Name(contentType), err)
	}
	return decoded{typ: typ, source: source, contentType: contentType, content: r.Value}, nil
}

// checkText reports what a text column cannot hold.
func checkText(s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return errors.New("is not valid UTF-8 without NUL")
	}
	return nil
}
