package servers

import "fmt"

// findKafka returns the way to run Kafka that this machine has.
func findKafka() (launcher, error) {
	jars, jarsErr := findJars()
	if jarsErr == nil {
		return jars, nil
	}
	container, dockerErr := findDocker()
	if dockerErr == nil {
		return container, nil
	}
	return nil, fmt.Errorf("no %s, from jars: %w, from Docker: %w; install with apt-get install default-jdk-headless maven, or start a Docker daemon",
		KafkaEnv, jarsErr, dockerErr)
}
