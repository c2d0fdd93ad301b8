package servers

import "errors"

// findKafka returns a way to run Kafka on this machine.
func findKafka() (launcher, error) {
	missing := Missing{Server: "Kafka on a real broker",
		Install: "default-jdk-headless and maven, start a Docker daemon, or set " + KafkaEnv}
	if err := knownMissing(KafkaEnv, missing); err != nil {
		return nil, err
	}
	jars, jarsErr := findJars()
	if jarsErr == nil {
		return jars, nil
	}
	container, dockerErr := findDocker()
	if dockerErr == nil {
		return container, nil
	}
	missing.Why, missing.Cause = jarsErr.Error()+", "+dockerErr.Error(), errors.Unwrap(jarsErr)
	return nil, &missing
}
