package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

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

// jars runs Kafka from its published jars.
type jars struct {
	java      string
	directory string
}

func (j jars) bind() string             { return loopback }
func (j jars) dataPath(k *Kafka) string { return k.directory.join("data") }

func (j jars) format(k *Kafka, clusterID string) *exec.Cmd {
	return j.command(k, "kafka.tools.StorageTool", "format", "--cluster-id", clusterID, "--config", k.settingsPath())
}

func (j jars) serve(k *Kafka) (*exec.Cmd, error) {
	return j.command(k, "kafka.Kafka", k.settingsPath()), nil
}

func (j jars) signal(k *Kafka, sig syscall.Signal) error {
	k.process.signal(sig)
	if sig != syscall.SIGSTOP {
		return nil
	}
	pid := k.process.pid()
	return await("broker stops", 10*time.Second, func() bool { return stopped(pid) || gone(pid) })
}

func (j jars) command(k *Kafka, arguments ...string) *exec.Cmd {
	options := []string{
		"-Xms64m", fmt.Sprintf("-Xmx%dm", k.heap), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djava.awt.headless=true", "-Dorg.apache.logging.log4j.level=WARN", "-cp", filepath.Join(j.directory, "*"),
	}
	command := exec.Command(j.java, append(options, arguments...)...)
	command.Dir = k.directory.path
	command.Env = environmentWithout([]string{"KAFKA_", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS",
		"CLASSPATH"})
	return command
}

// findJars finds Java and the cached jars. It downloads the jars once per machine.
func findJars() (jars, error) {
	java, err := findJava()
	if err != nil {
		return jars{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return jars{}, err
	}
	directory := filepath.Join(cache, "inbox-test", "kafka-"+KafkaVersion)
	if _, err := os.Stat(directory); errors.Is(err, os.ErrNotExist) {
		if err := jarsFetch.once(func() error { return fetchJars(directory) }); err != nil {
			return jars{}, &fetchFailed{"its jars", err}
		}
	} else if err != nil {
		return jars{}, err
	}
	return jars{java: java, directory: directory}, nil
}

var jarsFetch fetch

// fetchJars makes Maven copy the jars to a temporary directory and renames it when it is complete,
// so that no process finds an incomplete set.
func fetchJars(directory string) error {
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("no mvn on the PATH")
	}
	if err := os.MkdirAll(filepath.Dir(directory), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(directory), "fetching-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // only needed after a failure
	project := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(project, []byte(kafkaProject), 0o644); err != nil {
		return err
	}
	libraries := filepath.Join(work, "libraries")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	log := filepath.Join(work, "maven.log")
	command := exec.Command(maven, "-q", "-B", "-f", project,
		"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+libraries)
	if err := run(ctx, command, nil, log); err != nil {
		return err
	}
	if err := os.Rename(libraries, directory); err != nil {
		if _, there := os.Stat(directory); there != nil {
			return err
		}
		// Another process was faster, and its set is complete.
	}
	return nil
}

// findJava returns the first Java in JAVA_HOME or on the PATH that is new enough.
func findJava() (string, error) {
	const oldest = 17 // Kafka 4 brokers need it
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if path, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, path)
	}
	found := ""
	for _, candidate := range candidates {
		version := javaVersion(candidate)
		if version >= oldest {
			return candidate, nil
		}
		if version > 0 {
			found += fmt.Sprintf(" (%s is Java %d)", candidate, version)
		}
	}
	return "", fmt.Errorf("no Java %d or newer%s", oldest, found)
}

var javaVersionPattern = regexp.MustCompile(`version "(\d+)(?:\.(\d+))?`)

// javaVersion returns the major version, or 0 if the program does not report one.
func javaVersion(java string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return 0
	}
	match := javaVersionPattern.FindSubmatch(bytes.TrimSpace(output))
	if match == nil {
		return 0
	}
	major, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return 0
	}
	return major // 1 for Java 8 and older, which is too old as well
}
