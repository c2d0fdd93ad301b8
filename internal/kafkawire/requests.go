package kafkawire

import (
	"encoding/binary"
	"slices"

	"github.com/segmentio/kafka-go/protocol"
)

// request is one that waits for its answer.
type request struct {
	key     protocol.ApiKey
	version int16
	id      int32
	// token means a SASL token without a request around it, as brokers before Kafka 1.0 expect it. Its answer has no
	// frame either.
	token bool
}

// requestHeader is the size of a request's length, API key, version and correlation ID.
const requestHeader = 4 + 2 + 2 + 4

const (
	metadataFirst        = 4 // the first version with allow_auto_topic_creation,
	metadataLast         = 7 // and the last one where it is the last field
	lengthField          = 4
	allowNoTopicCreation = 0
)

// Write changes each metadata request so that it does not create topics. As the group's leader, kafka-go asks for the
// partitions of its topics and lets the broker create missing ones. A topic that is deleted while it is consumed would
// then come back with the broker's defaults: the commit of its offsets fails, the member joins again, and asks for it.
//
// In the versions that have the field (4 to 7, of which kafka-go uses 6) it is the request's last byte. Requests may
// come in pieces, or several in one write, but from one goroutine at a time.
func (c *checkedConn) Write(p []byte) (int, error) {
	var out []byte // a copy of p once it differs: p belongs to the caller
	for i := 0; i < len(p); {
		if c.seen < requestHeader && (c.seen < lengthField || c.seen < c.length) {
			c.header[c.seen] = p[i]
			c.seen++
			i++
			if c.seen == lengthField {
				c.length = lengthField + int64(binary.BigEndian.Uint32(c.header[:lengthField]))
			}
		} else {
			n := min(int64(len(p)-i), c.length-c.seen)
			c.seen += n
			i += int(n)
		}
		if c.seen < lengthField || c.seen < c.length {
			continue
		}
		if r := c.completed(); r.key == protocol.Metadata && r.version >= metadataFirst && r.version <= metadataLast {
			if out == nil {
				out = append(out, p...)
			}
			out[i-1] = allowNoTopicCreation
		}
		c.seen, c.length = 0, 0
	}
	if out == nil {
		out = p
	}
	return c.Conn.Write(out)
}

// completed records the request that is complete, before its last byte is sent.
func (c *checkedConn) completed() request {
	r := request{key: -1}
	if c.length > requestHeader {
		header := cursor{rest: c.header[lengthField:]}
		r = request{key: protocol.ApiKey(header.int16()), version: header.int16(), id: header.int32()}
	}
	// A token never begins with the key of a request: PLAIN's begins with the user's name, the tokens of SCRAM and
	// OAUTHBEARER begin with "n,".
	if _, known := answerKinds[r.key]; c.tokens && !known {
		r = request{key: protocol.SaslAuthenticate, token: true}
	}
	c.tokens = c.tokens || r.key == protocol.SaslHandshake && r.version == 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r)
	return r
}

// answered removes and returns the request that is answered next. Brokers answer the requests of one connection in
// order.
func (c *checkedConn) answered() (request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.asked) == 0 {
		return request{key: -1}, false
	}
	r := c.asked[0]
	c.asked = slices.Delete(c.asked, 0, 1)
	return r, true
}
