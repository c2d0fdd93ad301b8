// Command tutorial is the program of docs/tutorial.md, which shows its other
// files. It takes DATABASE_URL and KAFKA_BROKERS from its environment.
package main
