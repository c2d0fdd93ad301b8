package dashboard

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

var errForeignHost = errors.New("the Host header names another machine, which Insecure does not allow")

// anybody is the authorizer of Insecure. It refuses foreign Host headers because of DNS rebinding:
// another site can have its own name resolve to this machine, and its pages then have the
// dashboard's origin. Only the name in the Host header reveals it.
func (o Options) anybody(r *http.Request) (Principal, error) {
	named := slices.ContainsFunc(o.Origins, func(origin string) bool {
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
