package pgxtx

// ExecAfter is what a statement runs with after those of Later.
var ExecAfter = execAfter
