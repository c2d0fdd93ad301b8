package dashboard

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

var errForeignHost = errors.New("the Host header names another machine than this one, and the dashboard is insecure")

// anybody is the authorizer of Insecure. A page of another site can have its own
// name lead to this machine: then it is of the same origin as the dashboard, and
// all that tells it is that name in the Host header.
func (s *settings) anybody(r *http.Request) (Principal, error) {
	named := slices.ContainsFunc(s.origins, func(origin string) bool {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	})
	if !named && !isLoopback(r.Host) {
		return Principal{}, errForeignHost
	}
	return Principal{Actor: "anonymous", Role: Admin}, nil
}

func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil { // no port
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}
