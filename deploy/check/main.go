// Check deploy/ with the programs' own types: the compose file with Compose's own loader and schema, and what Kustomize
// builds of the base, strictly decoded as Kubernetes decodes it. Run by `make deploy-check`.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	deploy := os.Args[1]
	for _, check := range []func(string) error{composeFile, manifests, executorTemplate} {
		if err := check(deploy); err != nil {
			fmt.Fprintln(os.Stderr, "opentab:", err)
			os.Exit(1)
		}
	}
}

// composeFile does what `docker compose config` does.
func composeFile(deploy string) error {
	options, err := cli.NewProjectOptions(
		[]string{filepath.Join(deploy, "compose.yaml")},
		cli.WithProfiles([]string{"*"}),
		cli.WithEnv([]string{"OPENTAB_KEY=check", "STORE_PASSWORD=check"}),
	)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return fmt.Errorf("compose.yaml: %w", err)
	}
	fmt.Println("compose.yaml: services", project.ServiceNames())
	return nil
}

// manifests builds the base, and decodes each object: an unknown field or a wrong type is an error.
func manifests(deploy string) error {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(deploy, "kubernetes"))
	if err != nil {
		return err
	}
	text, err := built.AsYaml()
	if err != nil {
		return err
	}
	return decode("kubernetes", bytes.NewReader(text))
}

func executorTemplate(deploy string) error {
	file, err := os.Open(filepath.Join(deploy, "kubernetes", "executor.yaml"))
	if err != nil {
		return err
	}
	defer file.Close()
	return decode("executor.yaml", file)
}

func decode(name string, text io.Reader) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewDocumentDecoder(io.NopCloser(text))
	buffer := make([]byte, 1<<20)
	for {
		size, err := documents.Read(buffer)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		_, kind, err := strict.Decode(buffer[:size], nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, buffer[:size])
		}
		fmt.Printf("%s: %s\n", name, kind)
	}
}
