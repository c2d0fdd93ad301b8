package simulation

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// cache is a Redis server in memory, with the commands that redisstore sends. Each of them is atomic. It does not run
// scripts, but does what redisstore's scripts say.
type cache struct {
	mu     sync.Mutex
	values map[string]cached
}

type cached struct {
	text  string
	until time.Time
}

// get returns the value of a key, empty if there is none. The caller has the lock.
func (c *cache) get(key string) string {
	if v := c.values[key]; time.Now().Before(v.until) {
		return v.text
	}
	return ""
}

// remembers reports whether one of these keys holds a marker.
func (c *cache) remembers(keys ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if strings.HasPrefix(c.get(key), "processed ") {
			return true
		}
	}
	return false
}

// eval runs a script of redisstore.
func (c *cache) eval(script string, keys []string, args []any) any {
	claim := args[0].(string)
	set := func(text string, milliseconds any) {
		until := time.Now().Add(time.Duration(milliseconds.(int64)) * time.Millisecond)
		for _, key := range keys {
			c.values[key] = cached{text, until}
		}
	}
	switch {
	case strings.Contains(script, "'DEL'"):
		released, lost := int64(0), false
		for _, key := range keys {
			switch c.get(key) {
			case claim:
				delete(c.values, key)
				released++
			case "":
			default:
				lost = true
			}
		}
		if lost {
			return int64(-1)
		}
		return released
	case strings.Contains(script, "'PEXPIRE'"):
		for _, key := range keys {
			if c.get(key) != claim {
				return int64(0)
			}
		}
		set(claim, args[1])
		return int64(1)
	case strings.Contains(script, "'PX', ARGV[3]"): // finalise
		for _, key := range keys {
			switch c.get(key) {
			case args[1]:
				return int64(1)
			case claim:
			default:
				return int64(0)
			}
		}
		set(args[1].(string), args[2])
		return int64(1)
	}
	other := ""
	for _, key := range keys {
		if value := c.get(key); value != "" && value != claim {
			if strings.HasPrefix(value, args[2].(string)) {
				return value
			}
			other = value
		}
	}
	if other != "" {
		return other
	}
	set(claim, args[1])
	return claim
}

// cacheClient is a client of one process. What redisstore does not call is missing.
type cacheClient struct {
	redis.UniversalClient
	process *process
}

var errSilentCache = errors.New("the cache does not answer")

// call carries a command to the server.
func (c cacheClient) call(ctx context.Context, command string, do func(*cache)) error {
	return c.process.carry(ctx, &c.process.cacheFaults, command, errSilentCache, func() error {
		server := &c.process.w.cache
		server.mu.Lock()
		defer server.mu.Unlock()
		do(server)
		return nil
	})
}

// SetArgs is SET with NX, GET and PX.
func (c cacheClient) SetArgs(ctx context.Context, key string, value any, a redis.SetArgs) *redis.StatusCmd {
	var before string
	err := c.call(ctx, "SET", func(s *cache) {
		if before = s.get(key); before == "" {
			s.values[key] = cached{value.(string), time.Now().Add(a.TTL)}
		}
	})
	if err == nil && before == "" {
		err = redis.Nil
	}
	return redis.NewStatusResult(before, err)
}

// Info returns that nothing is evicted.
func (c cacheClient) Info(ctx context.Context, _ ...string) *redis.StringCmd {
	return redis.NewStringResult("maxmemory_policy:noeviction\r\n", c.call(ctx, "INFO", func(*cache) {}))
}

// refusal is an error that the server returns.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// EvalSha knows no script.
func (cacheClient) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	return redis.NewCmdResult(nil, refusal("NOSCRIPT"))
}

// Eval runs a script.
func (c cacheClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	var result any
	err := c.call(ctx, "EVAL", func(s *cache) { result = s.eval(script, keys, args) })
	return redis.NewCmdResult(result, err)
}
