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
	// token is one of SASL without a request around it, as brokers before Kafka
	// 1.0 want it; so is its answer.
	token bool
}

// requestHeader is a request's length, API key, version and correlation ID.
const requestHeader = 4 + 2 + 2 + 4

const (
	metadataFirst        = 4 // the first version with allow_auto_topic_creation,
	metadataLast         = 7 // and the last one where it is the last field
	lengthField          = 4
	allowNoTopicCreation = 0
)

// Write forbids, in each metadata request that passes, to create topics: as the
// group's leader kafka-go asks for the partitions of its topics and lets the
// broker create those that are missing. Without this, a topic that is deleted
// while it is consumed would come back with the broker's defaults: the commit of
// its offsets fails, the member joins again, and asks. In the versions that can
// say so (4 to 7, of which kafka-go uses 6) the request's last byte does.
// Requests may come in pieces, several to a write, but from one goroutine at a
// time.
func (c *checkedConn) Write(p []byte) (int, error) {
	var out []byte // a copy of p once it differs: p is the caller's
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

// completed notes the request that is complete, before its last byte is sent.
func (c *checkedConn) completed() request {
	r := request{key: -1}
	if c.length > requestHeader {
		header := cursor{rest: c.header[lengthField:]}
		r = request{key: protocol.ApiKey(header.int16()), version: header.int16(), id: header.int32()}
	}
	// A token begins with no key of a request: PLAIN's with the user's name,
	// those of SCRAM and OAUTHBEARER with "n,".
	if _, known := answerKinds[r.key]; c.tokens && !known {
		r = request{key: protocol.SaslAuthenticate, token: true}
	}
	c.tokens = c.tokens || r.key == protocol.SaslHandshake && r.version == 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r)
	return r
}

// answered takes the request that is answered next: brokers answer those of a
// connection in their order.
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
