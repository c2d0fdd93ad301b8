package kafkaconsumer

import (
	"context"
	"encoding/binary"
	"net"
)

// dialGroup connects for the group, whose connections must not create topics:
// as the group's leader kafka-go asks for the partitions of its topics and lets
// the broker create those that are missing. Without this, a topic that is
// deleted while it is consumed would come back with the broker's defaults: the
// commit of its offsets fails, the member joins again, and asks. Requests are
// seen in plain, because dial does TLS.
func (n *network) dialGroup(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := n.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &creatingNothing{Conn: c}, nil
}

// creatingNothing forbids, in each metadata request that passes, to create
// topics. In the versions that can say so (4 to 7, of which kafka-go uses 6)
// the request's last byte does. Requests may come in pieces, several to a
// write, but from one goroutine at a time.
type creatingNothing struct {
	net.Conn
	header [requestHeader]byte
	seen   int64 // bytes of the current request, its length field included
	length int64 // of the current request, its length field included
}

// requestHeader is a request's length, API key and version.
const requestHeader = 4 + 2 + 2

const (
	metadataKey          = 3
	metadataFirst        = 4 // the first version with allow_auto_topic_creation,
	metadataLast         = 7 // and the last one where it is the last field
	lengthField          = 4
	allowNoTopicCreation = 0
)

// Write implements net.Conn.
func (c *creatingNothing) Write(p []byte) (int, error) {
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
		if c.forbid() {
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

// forbid says whether the request that is complete is one to change.
func (c *creatingNothing) forbid() bool {
	if c.length <= requestHeader {
		return false
	}
	key, version := binary.BigEndian.Uint16(c.header[4:]), binary.BigEndian.Uint16(c.header[6:])
	return key == metadataKey && version >= metadataFirst && version <= metadataLast
}
