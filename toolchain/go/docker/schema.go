package main

import (
	"strings"

	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	tfshim "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

// packageSchema describes the resources as the bridge translates them: property names, types, required inputs. It is
// made from the provider itself at start (a few milliseconds), so it cannot disagree with it; documentation and
// functions are left out.
func packageSchema(info tfbridge.ProviderInfo) schema.PackageSpec {
	spec := schema.PackageSpec{
		Name:      info.Name,
		Version:   info.Version,
		Resources: map[string]schema.ResourceSpec{},
		Types:     map[string]schema.ComplexTypeSpec{},
	}
	types := typeTable{spec.Types}
	spec.Provider.InputProperties, _ = types.properties("Provider", info.P.Schema(), info.Config, onlyInputs)
	for name, resource := range info.Resources {
		fields := info.P.ResourcesMap().Get(name).Schema()
		title := string(resource.Tok.Name())
		inputs, required := types.properties(title, fields, resource.Fields, onlyInputs)
		outputs, _ := types.properties(title, fields, resource.Fields, everything)
		spec.Resources[string(resource.Tok)] = schema.ResourceSpec{
			ObjectTypeSpec:  schema.ObjectTypeSpec{Type: "object", Properties: outputs},
			InputProperties: inputs,
			RequiredInputs:  required,
		}
	}
	return spec
}

func onlyInputs(s tfshim.Schema) bool { return s.Optional() || s.Required() }
func everything(tfshim.Schema) bool   { return true }

// typeTable collects the object types met on the way.
type typeTable struct {
	types map[string]schema.ComplexTypeSpec
}

func (t typeTable) properties(
	owner string, fields tfshim.SchemaMap, infos map[string]*tfbridge.SchemaInfo, include func(tfshim.Schema) bool,
) (map[string]schema.PropertySpec, []string) {
	properties, required := map[string]schema.PropertySpec{}, []string{}
	fields.Range(func(key string, field tfshim.Schema) bool {
		if !include(field) || field.Removed() != "" {
			return true
		}
		name := tfbridge.TerraformToPulumiNameV2(key, fields, infos)
		properties[name] = schema.PropertySpec{
			TypeSpec:             t.typeOf(owner+title(key), field, infos[key]),
			Secret:               field.Sensitive(),
			WillReplaceOnChanges: field.ForceNew(),
		}
		if field.Required() && !autonamed(infos[key]) {
			required = append(required, name)
		}
		return true
	})
	return properties, required
}

func (t typeTable) typeOf(owner string, field tfshim.Schema, info *tfbridge.SchemaInfo) schema.TypeSpec {
	switch field.Type() {
	case tfshim.TypeBool:
		return schema.TypeSpec{Type: "boolean"}
	case tfshim.TypeInt:
		return schema.TypeSpec{Type: "integer"}
	case tfshim.TypeFloat:
		return schema.TypeSpec{Type: "number"}
	case tfshim.TypeString:
		return schema.TypeSpec{Type: "string"}
	}
	element := t.elementOf(owner, field, info)
	switch {
	case field.Type() == tfshim.TypeMap:
		return schema.TypeSpec{Type: "object", AdditionalProperties: &element}
	case tfbridge.IsMaxItemsOne(field, info):
		return element
	default:
		return schema.TypeSpec{Type: "array", Items: &element}
	}
}

func (t typeTable) elementOf(owner string, field tfshim.Schema, info *tfbridge.SchemaInfo) schema.TypeSpec {
	var elementInfo *tfbridge.SchemaInfo
	if info != nil {
		elementInfo = info.Elem
	}
	switch element := field.Elem().(type) {
	case tfshim.Schema:
		return t.typeOf(owner, element, elementInfo)
	case tfshim.Resource:
		var infos map[string]*tfbridge.SchemaInfo
		if elementInfo != nil {
			infos = elementInfo.Fields
		}
		token := string(member(owner))
		properties, required := t.properties(owner, element.Schema(), infos, everything)
		t.types[token] = schema.ComplexTypeSpec{ObjectTypeSpec: schema.ObjectTypeSpec{
			Type: "object", Properties: properties, Required: required,
		}}
		return schema.TypeSpec{Ref: "#/types/" + token}
	default: // Terraform's untyped lists and maps hold strings
		return schema.TypeSpec{Type: "string"}
	}
}

// title makes GroupAdd of group_add.
func title(key string) string {
	name := ""
	for _, word := range strings.Split(key, "_") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

func autonamed(info *tfbridge.SchemaInfo) bool {
	return info != nil && info.Default != nil && info.Default.AutoNamed
}
