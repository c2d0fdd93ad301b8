package options

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/kafkapublisher"
)

const module = "github.com/gorm-inbox/inbox"

const introduction = `# Options

One line for each option: what it is, and when not to use it. The rest is in its documentation, such as
` + "`go doc inbox.Options`, `go doc processor.Options.Listen` or `go doc handler.Timeout`" + `. The code makes this page:

` + "```sh\ngo test ./internal/pages/options -update\n```" + `

A bad value is an error at start. The error names the option, the value and what is allowed; all errors of an inbox come together.
The options of the inline receiver without an inbox are in [idempotent.md](idempotent.md).

## From a file or the environment

Load the values over ` + "`inbox.DefaultOptions()`" + ` and assign the result:
` + "`inbox.Configure(func(o *inbox.Options) { *o = loaded })`" + `. An option's key is its name in snake case, without
` + "`Processor`, `Acceptor` or `Cleanup`" + `: all keys are on one level. An option whose *allowed* says "code" has no key.
`

// loading names the files of examples/pages/loading, or functions of its program, that show how to load options, each
// with its language and the text before it.
var loading = []struct{ quoted, language, before string }{
	{"inbox.yaml", "yaml", ""},
	{"loading.go#fromYAML", "go", "Let `gopkg.in/yaml.v3` refuse unknown keys; otherwise a misspelt or nested one has no effect:"},
	{"inbox.env", "sh", "An environment key is in capitals, after a prefix of yours:"},
	{"loading.go#fromEnvironment", "go", "`github.com/caarlos0/env/v11` does not refuse unknown keys, so check them:"},
}

// loadingSection returns the blocks of loading.
func loadingSection(root string) (string, error) {
	var b strings.Builder
	for _, l := range loading {
		const folder = "examples/pages/loading/"
		name, function, _ := strings.Cut(l.quoted, "#")
		text, err := os.ReadFile(filepath.Join(root, folder+name))
		if err != nil {
			return "", err
		}
		code := string(text)
		if function != "" {
			code = regexp.MustCompile(`(?ms)^func ` + function + `\(.*?^}\n`).FindString(code)
		}
		if l.before != "" {
			b.WriteString("\n" + l.before + "\n")
		}
		b.WriteString("\n<!-- code: " + folder + l.quoted + " -->\n```" + l.language + "\n" + code + "```\n")
	}
	return b.String(), nil
}

var stated = regexp.MustCompile(`(?s)\bDefaults?:? ("[^"]+"|[^.]+?)(?:\.$|\. |\s\(contract|\.\n)`)

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
	publisher, err := load(filepath.Join(root, "kafkapublisher"), module+"/kafkapublisher")
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

	facts := map[string][2]string{}
	for _, v := range values() {
		byDefault := v.byDefault
		if byDefault == "" { // by the name of the inbox or by its database
			byDefault = cmp.Or(statedDefault(text[v.path]), "none")
		}
		facts[v.path] = [2]string{byDefault, allowedText(v)}
	}
	fromCode := func(name string) [2]string { return [2]string{statedDefault(text[name]), "code"} }

	var b strings.Builder
	b.WriteString(introduction)
	blocks, err := loadingSection(root)
	if err != nil {
		return "", err
	}
	b.WriteString(blocks)
	links := anchors(string(contract))
	named := func(before string) func(string) string { return func(string) string { return before } }
	write := func(s section) { s.write(&b, links) }

	b.WriteString("\n## Options of an inbox\n\nSet them with `inbox.Configure` in `inbox.Module(name, …)` or `inbox.New(name, db, …)`.\n")
	for _, group := range []string{"Processor.", "Acceptor.", "Cleanup.", ""} {
		var entries []entry
		for _, e := range all {
			if found, _, inside := strings.Cut(e.name, "."); inside && found+"." == group || !inside && group == "" {
				entries = append(entries, e)
			}
		}
		title := "o." + strings.TrimSuffix(group, ".")
		if group == "" {
			title = "o"
		}
		write(section{title: "### " + title, entries: entries, before: named("o."), facts: func(name string) [2]string {
			if known, found := facts[name]; found {
				return known
			}
			return fromCode(name)
		}})
	}
	write(section{title: "## Options of a channel", entries: own.functions("ChannelOption"), before: named("inbox."),
		intro: "Give them to `inbox.Channel(name, …)`. A channel without a delivery mode is an Inbox channel: see [modes.md](modes.md)."})
	write(section{title: "### inbox.ChannelOptions", entries: own.fields("ChannelOptions"), before: named("o."),
		intro: "Set them with `inbox.ConfigureChannel`. They begin with the inbox's values."})
	write(section{title: "## Options of an Inline channel", entries: own.functions("InlineOption"), before: named("inbox."),
		intro: "Give them to `inbox.Inline(…)`."})
	write(section{title: "## Options of a handler", entries: handlers.functions("Option"), before: named("handler."),
		intro: "Give them to `inbox.Func(key, fn, …)` and its siblings."})
	write(section{title: "## kafkaconsumer.Config", entries: consumer.fields("Config"), before: named(""),
		intro: "Give it to `inbox.Kafka(…)`. `Brokers`, `Topics` and `GroupID` are required; other fields left zero get their defaults.",
		facts: defaultOf(consumer.fields("Config"), kafkaconsumer.DefaultConfig())})
	write(section{title: "## kafkaconsumer.SASL", entries: consumer.fields("SASL"), before: named("SASL.")})
	write(section{title: "## envelope.DecoderConfig", entries: decoder.fields("DecoderConfig"), before: named("Decoder."),
		intro: "It is the consumer's `Decoder`, and says how records become messages.",
		facts: defaultOf(decoder.fields("DecoderConfig"), envelope.DefaultDecoderConfig())})
	write(section{title: "## kafkapublisher.Config", entries: publisher.fields("Config"), before: named(""),
		intro: "Give it to `kafkapublisher.New`. `Brokers` and `Topic` are required; other fields left zero get their defaults.",
		facts: defaultOf(publisher.fields("Config"), kafkapublisher.DefaultConfig())})
	return b.String(), nil
}

// defaultOf returns the defaults of a config's fields: their values, else what their documentation
// states.
func defaultOf(fields []entry, config any) func(name string) [2]string {
	return func(name string) [2]string {
		of := slices.IndexFunc(fields, func(e entry) bool { return e.name == name })
		return [2]string{cmp.Or(fieldDefault(config, name), statedDefault(fields[of].doc))}
	}
}

func allowedText(v value) string {
	if len(v.allowed) == 0 && (v.byDefault == "on" || v.byDefault == "off") {
		return "on or off"
	}
	return cmp.Or(strings.Join(v.allowed, "; "), "–")
}

// statedDefault returns the default that an option's documentation states.
func statedDefault(text string) string {
	all := stated.FindAllStringSubmatch(strings.ReplaceAll(text, "\\", ""), -1)
	if len(all) == 0 {
		return ""
	}
	return strings.ReplaceAll(strings.ReplaceAll(all[len(all)-1][1], `"`, ""), "\n", " ")
}
