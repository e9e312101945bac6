// Command pulumi-resource-docker is the resource plugin behind the pulumi-docker SDK: the upstream Terraform provider
// through Pulumi's Terraform bridge. The official plugin is the same provider with the same overrides, plus
// docker.Image (a native build resource), which this one leaves out.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	shimv2 "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim/sdk-v2"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
	"github.com/terraform-providers/terraform-provider-docker/shim"
)

// version is that of the pulumi-docker SDK; the builder sets it with -ldflags -X.
var version = "0.0.0"

const pkg = "docker"

// member is the token of a resource or function: docker:index/container:Container.
func member(name string) tokens.ModuleMember {
	return tokens.ModuleMember(pkg + ":index/" + string(name[0]|0x20) + name[1:] + ":" + name)
}

func resource(name string, fields map[string]*tfbridge.SchemaInfo) *tfbridge.ResourceInfo {
	return &tfbridge.ResourceInfo{Tok: tokens.Type(member(name)), Fields: fields}
}

// keep holds a list property's name as it is: the bridge would make a plural of it.
func keep(name string) *tfbridge.SchemaInfo { return &tfbridge.SchemaInfo{Name: name} }

// provider maps the upstream provider to Pulumi. Overrides: provider/resources.go of pulumi-docker.
func provider() tfbridge.ProviderInfo {
	container := resource("Container", map[string]*tfbridge.SchemaInfo{
		"command":           keep("command"),
		"networks_advanced": keep("networksAdvanced"),
	})
	// Docker refuses a second container of the same name.
	container.DeleteBeforeReplace = true

	dataSource := func(name string) *tfbridge.DataSourceInfo { return &tfbridge.DataSourceInfo{Tok: member(name)} }
	info := tfbridge.ProviderInfo{
		P:       shimv2.NewProvider(shim.Provider()),
		Name:    pkg,
		Version: version,
		Config: map[string]*tfbridge.SchemaInfo{
			"host": {Default: &tfbridge.DefaultInfo{
				Value:   "unix:///var/run/docker.sock",
				EnvVars: []string{"DOCKER_HOST"},
			}},
			"registry_auth": {Name: "registryAuth", MaxItemsOne: tfbridge.False()},
		},
		Resources: map[string]*tfbridge.ResourceInfo{
			"docker_buildx_builder": resource("BuildxBuilder", nil),
			"docker_config":         resource("ServiceConfig", nil),
			"docker_container":      container,
			"docker_image": resource("RemoteImage", map[string]*tfbridge.SchemaInfo{
				"name": keep("name"), // a reference, never to be named automatically
			}),
			"docker_network":        resource("Network", nil),
			"docker_plugin":         resource("Plugin", nil),
			"docker_registry_image": resource("RegistryImage", nil),
			"docker_secret":         resource("Secret", nil),
			"docker_service":        resource("Service", nil),
			"docker_tag":            resource("Tag", nil),
			"docker_volume":         resource("Volume", nil),
		},
		DataSources: map[string]*tfbridge.DataSourceInfo{
			"docker_image":                    dataSource("getRemoteImage"),
			"docker_logs":                     dataSource("getLogs"),
			"docker_network":                  dataSource("getNetwork"),
			"docker_plugin":                   dataSource("getPlugin"),
			"docker_registry_image":           dataSource("getRegistryImage"),
			"docker_registry_image_manifests": dataSource("getRegistryImageManifests"),
		},
	}
	info.SetAutonaming(255, "-")
	return info
}

func main() {
	info := provider()
	schema, err := json.Marshal(packageSchema(info))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pulumi-resource-docker: schema:", err)
		os.Exit(1)
	}
	tfbridge.Main(pkg, version, info, schema)
}
