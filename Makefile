# The commands of CONTRIBUTING.md. Each module of the repository is covered:
# a new go.mod needs no line here.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := test

MODULES := $(sort $(patsubst %/,%,$(dir $(shell find . -name go.mod -not -path '*/testdata/*' -not -path '*/.*'))))
GO_FILES := find . -name '*.go' -not -path '*/testdata/*' -not -path '*/.*'

# Built programs, out of sight of git.
BIN := $(CURDIR)/.build
STATICCHECK := $(BIN)/staticcheck
WITH_SERVERS := $(BIN)/withservers

# Added to every go test, such as TEST_FLAGS='-run Lane -count 5'. Fewer modules and
# packages are MODULES=. PACKAGES='./processor ./acceptor'.
TEST_FLAGS ?=
PACKAGES := ./...
MINUTES ?= 5
SEED ?= $(shell date +%s)
DATABASE ?= postgres

# Runs a command in every module and fails if it failed in any.
define in_modules
status=0; for module in $(MODULES); do (cd "$$module" && $(1)) || status=1; done; exit $$status
endef

.PHONY: test
test: ## the tests, with real servers that it starts and ends
	@scripts/servers
	@$(MAKE) --no-print-directory programs
	$(WITH_SERVERS) -- $(MAKE) --no-print-directory test-here

.PHONY: test-more
test-more: ## outages and crashes under load, the browser, the release, other connections, SQLite in C, a sixteenth of the mutants
	@scripts/servers
	@$(MAKE) --no-print-directory programs
	$(WITH_SERVERS) -- $(MAKE) --no-print-directory test-more-here

# The same with servers that run already: INBOX_TEST_POSTGRES, INBOX_TEST_MARIADB,
# INBOX_TEST_MYSQL, INBOX_TEST_KAFKA and INBOX_TEST_REDIS name them. Tests of what is missing are left out, and the last
# line names it; under CI=true or INBOX_TEST_REQUIRE=1 they fail. Two packages at a
# time at most, however many cores: beside more, those that measure time would
# starve. Four tests of each: most of them wait. Checks of races and pointers in SQLite
# that is translated from C would take more than half of the time of tests that use it.
# The longest packages of a module begin first, so that none runs alone at its end.
LONGEST := processor internal/store/postgres ops kafka mysql

# What test-more runs, and a plain `make test` does not.
MORE := integration/(connections|dashboard|endtoend|soak)|examples/(minimal|once|payments|quickstart|shards|shop|transfers)|tools/release
MORE_ALONE := integration/(maketest|mutants)
ifeq ($(PACKAGES),./...)
CHOSEN = for p in $(LONGEST); do if [ -d $$p ]; then echo ./$$p; fi; done; go list ./... | grep -vE '/($(MORE)|$(MORE_ALONE))$$'
else
CHOSEN = echo $(PACKAGES)
endif
# What the race detector of Go 1.26 crashes on runs without it: the simulation, with new seeds for a minute.
WITHOUT_RACE := $(if $(and $(filter ./...,$(PACKAGES)),$(filter %integration,$(MODULES))),(cd integration && go test -json $(TEST_FLAGS) ./simulation/broker) && JSON=1 MINUTES=1 SEED= KEEP= scripts/simulate,true)
# `make vet` looks into all packages, so no test does once more.
TESTED := go test -json -race -vet=off -gcflags='modernc.org/...=-d=checkptr=0' -gcflags='modernc.org/sqlite/lib=-race=false' -gcflags='modernc.org/libc=-race=false' -gcflags='modernc.org/memory=-race=false' -p 2 -parallel 4 -timeout 15m $(TEST_FLAGS)

# Of the packages that test-more runs, make test has the failovers under Patroni, after all others and beside the
# simulation, because they mostly wait. Of the losses that not every run has, and of the suite in partitions, each
# commit runs a part. INBOX_TEST_ROTATION=all runs all.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
export INBOX_TEST_ROTATION ?= $(COMMITS)
FAILOVERS := $(if $(and $(filter ./...,$(PACKAGES)),$(filter %integration,$(MODULES)),$(if $(findstring -run,$(TEST_FLAGS)),,all)),(cd integration && $(TESTED) -run '^TestPatroni' ./endtoend),true)

.PHONY: test-here
test-here: $(BIN)/testreport
	@set -eu -o pipefail; { ended=0; ($(call in_modules,packages=$$($(CHOSEN)) && $(TESTED) $$packages)) || ended=1; \
		($(WITHOUT_RACE)) >$(BIN)/simulated.json 2>&1 & renice -n 10 $$! >/dev/null 2>&1 || true; \
		$(FAILOVERS) || ended=1; wait $$! || ended=1; cat $(BIN)/simulated.json; exit $$ended; } | $(BIN)/testreport

# Here tests of behaviour run on SQLite with GORM's default driver, which is in C, without -race.
WITH_MATTN := INBOX_TEST_SQLITE=mattn go test -json -vet=off -p 2 -parallel 4 -timeout 15m $(TEST_FLAGS)

# All mutants take about as long as all tests. Each commit has its turn at a part.
TURN := $(shell echo $$(($(COMMITS) % 16 + 1)))/16
MUTANTS := -part $(TURN) -jobs 2

.PHONY: test-more-here
test-more-here: $(BIN)/testreport $(BIN)/mutants
	@set -eu -o pipefail; { \
		for module in integration examples tools; do (cd $$module; packages=$$(go list ./... | grep -E '/($(MORE))$$'); $(TESTED) -skip '^TestPatroni' $$packages); done; \
		(cd integration; packages=$$(go list ./... | grep -E '/($(MORE_ALONE))$$'); $(TESTED) -p 1 $$packages); \
		$(WITH_MATTN) . ./internal/engine ./processor ./acceptor ./cleanup ./ops ./dashboard ./internal/store/sqlite ./internal/synchronous ./idempotent/...; \
		$(BIN)/mutants -json $(MUTANTS); \
	} | $(BIN)/testreport

.PHONY: mutants
mutants: ## put all known defects in, one at a time, and see tests fail
	@scripts/servers
	@$(MAKE) --no-print-directory programs
	$(WITH_SERVERS) -- $(BIN)/mutants -jobs 3

# The module's other tests on MySQL name "Vitess" as a subtest.
.PHONY: vitess
vitess: $(BIN)/testreport ## the MySQL store on an unsharded Vitess 24 and a failover of its cluster: half an hour, the first time also 5 GB of Go's caches to build it
	scripts/vitess $(BIN)/vitess
	@set -eu -o pipefail; export INBOX_TEST_VITESS=$(BIN)/vitess; cd integration; { ended=0; \
		go test -json -race -p 1 -timeout 60m $(TEST_FLAGS) -run '^TestVitess' ./mysql ./endtoend || ended=1; \
		go test -json -race -p 1 -timeout 60m $(TEST_FLAGS) -run '/^Vitess$$' ./mysql || ended=1; exit $$ended; } | $(BIN)/testreport

.PHONY: soak
soak: ## MINUTES=5 SEED=n DATABASE=mariadb (or mysql, sqlite, patroni, partitions): load, crashes and outages, then a check of the ledger
	go run -C integration ./soak -minutes $(MINUTES) -seed $(SEED) -database $(DATABASE) -rate $(if $(filter sqlite,$(DATABASE)),30,150)

.PHONY: ledger
ledger: ## MINUTES=60 SEED=n DATABASE=mariadb NEW=1: the same, and docs/ledger.md written with the run, or anew
	go run -C integration ./soak -minutes $(MINUTES) -seed $(SEED) -database $(DATABASE) $(if $(filter sqlite,$(DATABASE)),-rate 30,-rate 60 -workers 3) -page $(if $(NEW),-new)

.PHONY: ledger-controls
ledger-controls: ## which defects a short soak finds, written to docs/ledger.md
	go run -C integration ./mutants -soak -json | go run -C integration ./soak -controls -new

.PHONY: simulate
simulate: ## MINUTES=60 SEED=n: processes, faults and operators from seeds, in virtual time
	MINUTES=$(MINUTES) SEED=$(if $(filter command line,$(origin SEED)),$(SEED)) KEEP=$(KEEP) scripts/simulate

.PHONY: bench
bench: ## the module beside its peers, and docs/benchmarks.md written again
	go run -C bench . -docs

.PHONY: lint
lint: $(STATICCHECK) $(BIN)/forbidden ## staticcheck and the house rules
	$(call in_modules,$(STATICCHECK) ./...)
	$(GO_FILES) | $(BIN)/forbidden
	for script in .ci/run scripts/*; do bash -n $$script; done

.PHONY: vulncheck
vulncheck: $(BIN)/govulncheck ## known vulnerabilities that the code of any module reaches
	scripts/vulncheck $< $(MODULES)

.PHONY: vet
vet:
	$(call in_modules,go vet ./...)

.PHONY: fmt-check
fmt-check: ## names files that gofmt would change
	files="$$($(GO_FILES) -exec gofmt -l {} +)"; if [ -n "$$files" ]; then printf 'not formatted:\n%s\n' "$$files"; exit 1; fi

.PHONY: oldest
oldest: ## the module, and those of the Redis store and the codecs, with the oldest Go they promise
	for module in . idempotent/redisstore schemaregistry; do GOTOOLCHAIN=go1.26.0 go build -C $$module ./...; GOTOOLCHAIN=go1.26.0 go vet -C $$module ./...; done

.PHONY: modules
modules: ## names the modules that the other targets cover
	@printf '%s\n' $(MODULES)

.PHONY: clean
clean:
	rm -rf $(BIN)

# Programs are built each time; Go's cache makes that cheap.
.PHONY: programs
programs: $(WITH_SERVERS) $(BIN)/testreport $(BIN)/mutants

.PHONY: $(WITH_SERVERS) $(BIN)/mutants $(BIN)/testreport $(BIN)/forbidden $(BIN)/govulncheck $(STATICCHECK)
$(WITH_SERVERS):
	go build -C integration -o $@ ./cmd/withservers
$(BIN)/mutants:
	go build -C integration -o $@ ./mutants
$(BIN)/testreport:
	go build -C tools -o $@ ./testreport
$(BIN)/forbidden:
	go build -C tools -o $@ ./forbidden
$(BIN)/govulncheck:
	go build -C tools -o $@ golang.org/x/vuln/cmd/govulncheck
$(STATICCHECK):
	go build -C tools -o $@ honnef.co/go/tools/cmd/staticcheck
