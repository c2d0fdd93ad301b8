package options

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

const module = "github.com/gorm-inbox/inbox"

const introduction = `# Options

Every option with its default, what is allowed, and when not to use it. This page is made of the code:

` + "```sh\ngo test ./internal/pages/options -update\n```" + `

The numbers behind *contract* are clauses of [the contract](contract.md). A bad value is an error at start that names the option, the value and
what is allowed; all of an inbox's are reported together.

| options of | where they go |
|---|---|
| [an inbox](#options-of-an-inbox) | ` + "`inbox.Configure(func(o *inbox.Options) { … })`" + ` in ` + "`inbox.Module(name, …)` or `inbox.New(name, db, …)`" + ` |
| [a channel](#options-of-a-channel) | ` + "`inbox.Channel(name, …)`" + ` |
| [an Inline channel](#options-of-an-inline-channel) | ` + "`inbox.Inline(…)`" + ` |
| [a handler](#options-of-a-handler) | ` + "`inbox.Func(key, fn, …)`" + ` and its like |
| [a Kafka consumer](#kafkaconsumerconfig) | ` + "`inbox.Kafka(kafkaconsumer.Config{…})`" + ` |
| [its decoder](#envelopedecoderconfig) | ` + "`kafkaconsumer.Config.Decoder`" + ` |
| the inline receiver without an inbox | [idempotent.md](idempotent.md), and the packages' documentation |

## From a file or the environment

Start from ` + "`inbox.DefaultOptions()`" + `, unmarshal YAML over it or let a library that reads ` + "`env`" + ` tags do so, and assign the result:
` + "`inbox.Configure(func(o *inbox.Options) { *o = loaded })`" + `. The key in the environment is the same in capitals, behind a prefix of your own:
` + "`max_retries`" + ` is ` + "`ORDERS_MAX_RETRIES`" + ` with the prefix ` + "`ORDERS_`" + `.

| option | key | default | allowed |
|---|---|---|---|
`

var said = regexp.MustCompile(`(?s)Default:? ("[^"]+"|[^.]+?)(?:\.$|\. |\s\(contract|\.\n)`)

// page is docs/options.md as it should be.
func page(root string) (string, error) {
	contract, err := os.ReadFile(filepath.Join(root, "docs/contract.md"))
	if err != nil {
		return "", err
	}
	own, err := load(root, module)
	if err != nil {
		return "", err
	}
	handlers, err := load(filepath.Join(root, "handler"), module+"/handler")
	if err != nil {
		return "", err
	}
	consumer, err := load(filepath.Join(root, "kafkaconsumer"), module+"/kafkaconsumer")
	if err != nil {
		return "", err
	}
	decoder, err := load(filepath.Join(root, "envelope"), module+"/envelope")
	if err != nil {
		return "", err
	}
	all, err := settings(root)
	if err != nil {
		return "", err
	}
	text := map[string]string{}
	for _, e := range all {
		text[e.name] = e.doc
	}

	var b strings.Builder
	b.WriteString(introduction)
	facts := map[string]string{}
	for _, v := range values() {
		byDefault := v.byDefault
		if byDefault == "" { // by the name of the inbox or by its database
			if m := said.FindStringSubmatch(text[v.path]); m != nil {
				byDefault = strings.ReplaceAll(strings.Trim(m[1], `"`), "\n", " ")
			} else {
				byDefault = "none"
			}
		}
		can := cmp.Or(strings.Join(v.allowed, "; "), "–")
		fmt.Fprintf(&b, "| [`%s`](#%s) | `%s` | %s | %s |\n", v.path,
			strings.ToLower(strings.ReplaceAll("o."+v.path, ".", "")), v.key, byDefault, can)
		facts[v.path] = fmt.Sprintf("Default %s, allowed %s, key `%s`", byDefault, can, v.key)
	}

	links := anchors(string(contract))
	named := func(before string) func(string) string { return func(string) string { return before } }
	none := func(string) string { return "" }
	short := own.returning("handler.Option")
	for _, s := range []section{
		{"Options of an inbox", "In the order of the structs that hold them.", all, named("o."),
			func(name string) string { return facts[name] }},
		{"Options of a channel", "A channel without a delivery mode is an Inbox channel: see [modes.md](modes.md).",
			own.functions("ChannelOption"), named("inbox."), none},
		{"Options of an Inline channel", "See [modes.md](modes.md) for when to use one.", own.functions("InlineOption"),
			named("inbox."), none},
		{"Options of a handler", "Those that begin with `inbox.` are in package `handler`, too.",
			handlers.functions("Option"), func(name string) string {
				if short[name] {
					return "inbox."
				}
				return "handler."
			}, none},
		{"kafkaconsumer.Config", "Fields left zero get their defaults; `Brokers`, `Topics` and `GroupID` are required.",
			consumer.fields("Config"), named(""), func(name string) string {
				if d := fieldDefault(kafkaconsumer.DefaultConfig(), name); d != "" {
					return "Default " + d + "."
				}
				return ""
			}},
		{"kafkaconsumer.SASL", "", consumer.fields("SASL"), named("SASL."), none},
		{"envelope.DecoderConfig", "How records become messages.", decoder.fields("DecoderConfig"), named("Decoder."),
			func(name string) string {
				if d := fieldDefault(envelope.DefaultDecoderConfig(), name); d != "" {
					return "Default " + d + "."
				}
				return ""
			}},
	} {
		s.write(&b, links)
	}
	return b.String(), nil
}
