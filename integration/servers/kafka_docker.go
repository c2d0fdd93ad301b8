package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// container runs Kafka from its official image, for machines without Java.
type container struct {
	docker string
}

const (
	containerImage = "apache/kafka:" + KafkaVersion
	containerData  = "/inbox" // where the broker's directory is mounted
)

func (c container) bind() string           { return "0.0.0.0" } // published on 127.0.0.1 only
func (c container) dataPath(*Kafka) string { return containerData + "/data" }

func (c container) format(k *Kafka, clusterID string) *exec.Cmd {
	return c.command(k, "/opt/kafka/bin/kafka-storage.sh format --cluster-id "+clusterID+" --config "+containerData+
		"/server.properties")
}

// serve returns a command whose broker ends when its input ends. The daemon closes the input when
// the docker client is gone, so a container does not outlive this process either.
func (c container) serve(k *Kafka) (*exec.Cmd, error) {
	command := c.command(k, `exec 3<&0; (cat <&3 >/dev/null; kill -KILL $$) & exec /opt/kafka/bin/kafka-server-start.sh `+
		containerData+`/server.properties </dev/null`)
	if _, err := command.StdinPipe(); err != nil { // open in this process, closed when the command ends
		return nil, err
	}
	return command, nil
}

func (c container) signal(k *Kafka, sig syscall.Signal) error {
	action := map[syscall.Signal][]string{
		syscall.SIGTERM: {"kill", "--signal", "TERM"},
		syscall.SIGKILL: {"kill"},
		syscall.SIGSTOP: {"pause"},
		syscall.SIGCONT: {"unpause"},
	}[sig]
	if action == nil {
		return fmt.Errorf("docker: no action for signal %v", sig)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, c.docker, append(action, c.name(k))...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker %s: %w: %s", strings.Join(action, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

func (c container) command(k *Kafka, script string) *exec.Cmd {
	arguments := []string{
		"run", "--rm", "--init", "--interactive", "--name", c.name(k),
		"--user", fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), "--volume", k.directory.path + ":" + containerData,
		"--env", fmt.Sprintf("KAFKA_HEAP_OPTS=-Xms64m -Xmx%dm", k.heap), "--env", "LOG_DIR=" + containerData + "/logs",
	}
	if k.clustered { // nodes use the same addresses as this process
		arguments = append(arguments, "--network", "host")
	} else {
		for _, port := range k.ports() {
			arguments = append(arguments, "--publish", fmt.Sprintf("%s:%d:%d", loopback, port, port))
		}
	}
	return exec.Command(c.docker, append(arguments, "--entrypoint", "/bin/sh", containerImage, "-c", script)...)
}

func (c container) name(k *Kafka) string { return filepath.Base(k.directory.path) }

// findDocker returns docker if its daemon answers, and pulls the image.
func findDocker() (container, error) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		return container{}, errors.New("no docker on the PATH")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, docker, "version", "--format", "{{.Server.Version}}").Run(); err != nil {
		return container{}, errors.New("no daemon answers docker")
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if output, err := exec.CommandContext(ctx, docker, "pull", "--quiet", containerImage).CombinedOutput(); err != nil {
		return container{}, fmt.Errorf("docker pull %s: %w: %s", containerImage, err, bytes.TrimSpace(output))
	}
	return container{docker: docker}, nil
}
