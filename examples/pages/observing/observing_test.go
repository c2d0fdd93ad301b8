package observing

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/ops"
)

// Contract 11.5.
func TestProbesAnswerWithReasons(t *testing.T) {
	ib, err := inbox.New("shop", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		logTo(slog.New(slog.DiscardHandler)), inbox.Channel("shipping", inbox.On("shipment.wanted",
			inbox.Func("ship", func(context.Context, handler.Message[string]) error { return nil }))))
	require.NoError(t, err)
	mux := http.NewServeMux()
	probes(mux, ib)
	ask := func(path string) (int, string) {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code, answer.Body.String()
	}
	code, _ := ask("/ready")
	require.Equal(t, http.StatusServiceUnavailable, code, "it is not started")
	code, _ = ask("/live")
	require.Equal(t, http.StatusOK, code)

	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(t.Context())) }()
	code, body := ask("/ready")
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"inbox": "shop", "state": "healthy", "live": true, "ready": true, "reasons": []}`, body)
}

// The page and the contract list the reasons in the order in which they are shown.
func TestObservingPageListsEveryReason(t *testing.T) {
	page, err := os.ReadFile("../../../docs/observability.md")
	require.NoError(t, err)
	contract, err := os.ReadFile("../../../docs/contract.md")
	require.NoError(t, err)
	listed := func(text []byte, code string) []string {
		var codes []string
		for _, line := range regexp.MustCompile(`(?m)^[|-] .*$`).FindAllString(string(text), -1) {
			begin := regexp.MustCompile("^" + code).FindString(line)
			for _, found := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(begin, -1) {
				codes = append(codes, found[1])
			}
		}
		return codes
	}
	require.Equal(t, health.Codes(), listed(page, "\\| (`[a-z_]+`) \\|"))
	_, clause, _ := strings.Cut(string(contract), "### 11.5 ")
	clause, _, _ = strings.Cut(clause, "###")
	require.Equal(t, health.Codes(), listed([]byte(clause), "- (`[a-z_]+`(, | \\(|:))+"))
	shown := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(string(page))
	require.NotNil(t, shown)
	var body struct{ Reasons []ops.HealthReason }
	require.NoError(t, json.Unmarshal([]byte(shown[1]), &body))
	require.Equal(t, health.Halted, body.Reasons[0].Code)
	require.Equal(t, inbox.HealthUnhealthy, body.Reasons[0].State)
}
