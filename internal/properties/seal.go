package properties

import (
	"encoding/json"
	"strings"
)

// Seal is how a content is sealed; the zero Seal means that it is not (contract 15). It stands beside headers and
// attributes, not among them, so nothing that a producer sends can be taken for one.
type Seal struct {
	Key string `json:"key"`
	// SHA256 is the hash of the plain content; nil for the value of a rejected record.
	SHA256 []byte `json:"sha256,omitempty"`
}

// AddTo returns serialized properties with the seal as their last member.
func (s Seal) AddTo(serialized string) string {
	if s.Key == "" {
		return serialized
	}
	before := strings.TrimSuffix(serialized, "}")
	if before != "{" {
		before += ","
	}
	return before + `"sealed":` + toJSON(s) + "}"
}

// sealedRejected is the stored form of a rejected message's headers if its value is sealed.
type sealedRejected struct {
	Sealed  Seal            `json:"sealed"`
	Headers json.RawMessage `json:"headers"`
}

// AddToRejected returns the serialized headers of a rejected message with the seal of its value.
func (s Seal) AddToRejected(headers string) string {
	if s.Key == "" {
		return headers
	}
	return toJSON(sealedRejected{s, json.RawMessage(headers)})
}

// SealOfRejected is the inverse of AddToRejected. It returns other text as it is.
func SealOfRejected(serialized string) (headers string, seal Seal) {
	var stored sealedRejected
	if !strings.HasPrefix(serialized, `{"sealed":`) || json.Unmarshal([]byte(serialized), &stored) != nil {
		return serialized, Seal{}
	}
	return string(stored.Headers), stored.Sealed
}
