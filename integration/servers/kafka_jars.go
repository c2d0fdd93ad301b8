package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// KafkaVersion is the version of Apache Kafka that StartKafka starts.
const KafkaVersion = "4.1.0"

// kafkaProject lists what Maven downloads: the broker, and the logging binding that makes its log
// visible.
const kafkaProject = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inbox</groupId><artifactId>test-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + KafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
`

// java is a Java and the directory of Kafka's jars.
type java struct{ program, jars string }

// program returns a command that runs one of Kafka's programs.
func (k *Kafka) program(class string, arguments ...string) *exec.Cmd {
	command := exec.Command(k.java.program, "-Xms64m", fmt.Sprintf("-Xmx%dm", k.heap), "-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true",
		"-Dorg.apache.logging.log4j.level=WARN", "-cp", filepath.Join(k.java.jars, "*"), class)
	command.Args = append(command.Args, arguments...)
	command.Env = append(os.Environ(), "JAVA_TOOL_OPTIONS=", "JDK_JAVA_OPTIONS=", "_JAVA_OPTIONS=")
	return command
}

func findKafka() (java, error) {
	missing := Missing{Server: "Kafka on a real broker", Install: "default-jdk-headless and maven, or set " + KafkaEnv}
	if err := missing.known(KafkaEnv); err != nil {
		return java{}, err
	}
	program, err := findJava()
	if err != nil {
		return java{}, missing.because(err.Error(), nil)
	}
	jars, err := findJarsOnce()
	if err != nil {
		return java{}, missing.because("its jars cannot be fetched", err)
	}
	return java{program: program, jars: jars}, nil
}

// findJarsOnce does not try a failed download again in this process, because without a network each
// attempt may take minutes.
var findJarsOnce = sync.OnceValues(findJars)

// findJars returns the directory of Kafka's jars, which it downloads once per machine.
func findJars() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return fetched(filepath.Join(cache, "inbox-test"), "kafka-"+KafkaVersion, func(work, jars, log string) error {
		return copyWithMaven(kafkaProject, work, jars, log)
	})
}

// findJava returns the first Java in JAVA_HOME or on the PATH that is new enough.
func findJava() (string, error) {
	const oldest = 17 // Kafka 4 brokers need it
	candidates := []string{"java"}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = []string{filepath.Join(home, "bin", "java"), "java"}
	}
	tooOld := ""
	for _, candidate := range candidates {
		version := javaVersion(candidate)
		if version >= oldest {
			return candidate, nil
		}
		if version > 0 {
			tooOld += fmt.Sprintf(" (%s is Java %d)", candidate, version)
		}
	}
	return "", fmt.Errorf("no Java %d or newer%s", oldest, tooOld)
}

var javaVersionPattern = regexp.MustCompile(`version "(\d+)`)

// javaVersion returns the major version, which is 1 for Java 8 and older, or 0 if the program does
// not report one.
func javaVersion(java string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	match := javaVersionPattern.FindSubmatch(output)
	if err != nil || match == nil {
		return 0
	}
	major, _ := strconv.Atoi(string(match[1])) // the pattern ensures that it is a number
	return major
}
