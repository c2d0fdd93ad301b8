package kafkawire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzTopicIDIsReadOrRefused checks that an answer with a topic's ID is read whole or refused,
// whatever it claims.
func FuzzTopicIDIsReadOrRefused(f *testing.F) {
	answer := []byte{0, 0, 0, 0, 0} // no tags, no throttling
	answer = append(answer, 2, 0, 0, 0, 1, 2, 'b', 0, 0, 0, 9, 0, 0)
	answer = append(answer, 2, 'c', 0, 0, 0, 1) // cluster, controller
	answer = append(answer, 2, 0, 0, 2, 't', 0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xbb, 0, 1)
	f.Add(answer)
	f.Add(bytes.Repeat([]byte{0xff}, 60))
	id, cluster, err := readTopicID(&cursor{rest: answer}, "t")
	require.NoError(f, err)
	require.Equal(f, TopicID{0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xbb}, id)
	require.Equal(f, "c", cluster)
	_, _, err = readTopicID(&cursor{rest: answer}, "u")
	require.ErrorIs(f, err, errOtherAnswer)
	f.Fuzz(func(t *testing.T, content []byte) {
		id, cluster, err := readTopicID(&cursor{rest: content}, "t")
		require.True(t, err == nil || id == TopicID{})
		if err == nil {
			require.True(t, bytes.Contains(content, id[:]) && bytes.Contains(content, []byte(cluster)))
		}
	})
}
