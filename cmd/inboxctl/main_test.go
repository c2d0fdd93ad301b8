package main

import (
	"testing"

	"gorm.io/driver/mysql"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) {
	inboxtest.AddMySQL(mysql.Open)
	testenv.Main(m)
}
