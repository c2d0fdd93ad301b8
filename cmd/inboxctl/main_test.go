package main

import (
	"testing"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
