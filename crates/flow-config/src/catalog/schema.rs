//! The schema of a config: that of the sections, with the plug-ins' own in their places.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value as Json, json};

use super::{Catalog, PluginKind};
use crate::presets::presets;
use crate::schema::{strip_nulls, tidy};
use crate::sections::Config;

type Object = Map<String, Json>;

/// The whole schema.
pub(super) fn assemble(catalog: &Catalog) -> Json {
    let generated = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<Config>();
    let mut schema = generated.to_value();
    tidy(&mut schema);
    let names: Vec<&str> = presets().iter().map(|preset| preset.name).collect();
    schema["properties"]["preset"]["enum"] = names.into();
    let mut definitions = Definitions::new(&mut schema);
    if !catalog.is_open {
        definitions.choose("RewardConfig", catalog.rewards.values());
        definitions.choose(
            "AlgorithmConfig",
            catalog.algorithms.values().map(|kind| &kind.plugin),
        );
        definitions.model(catalog);
        definitions.choose("DataConfig", catalog.data.values().map(|kind| &kind.plugin));
    }
    let all = definitions.all;
    schema["$defs"] = all.into();
    default_of(&mut schema, "model", &catalog.defaults().model);
    default_of(&mut schema, "data", &catalog.defaults().data);
    default_of(&mut schema, "algorithm", &catalog.defaults().algorithm);
    schema
}

/// A section may be left out, and is then this.
fn default_of(schema: &mut Json, section: &str, value: &impl serde::Serialize) {
    let mut default = serde_json::to_value(value).unwrap_or_default();
    strip_nulls(&mut default);
    schema["properties"][section]["default"] = default;
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|key| key != section);
    }
}

struct Definitions {
    all: Object,
}

impl Definitions {
    fn new(schema: &mut Json) -> Self {
        let all = match schema["$defs"].take() {
            Json::Object(all) => all,
            _ => Object::new(),
        };
        Self { all }
    }

    /// Makes the section `name`, which has the keys that are common to its plug-ins, one variant per plug-in.
    fn choose<'k>(&mut self, name: &str, kinds: impl Iterator<Item = &'k PluginKind>) {
        let common = self.all.get(name).cloned().unwrap_or_default();
        let variants: Vec<Json> = kinds.map(|kind| self.variant(kind, &common)).collect();
        self.all[name] = json!({ "description": common["description"], "oneOf": variants });
    }

    /// Gives the section of the model the names of the architectures, and each one's table.
    fn model(&mut self, catalog: &Catalog) {
        let mut tables = Object::new();
        let defaults = &catalog.defaults().model;
        for (name, kind) in catalog.models.iter() {
            let mut own = self.adopt(&kind.plugin);
            let definition = match own.as_object_mut().and_then(|own| own.shift_remove("title")) {
                Some(Json::String(title)) => title,
                _ => format!("{name}.Config"),
            };
            if let Some(own) = own.as_object_mut() {
                own.shift_remove("$schema");
            }
            self.all.insert(definition.clone(), own);
            let description = format!(
                "Dimensions of {}, read when `architecture = \"{name}\"`.",
                kind.noun
            );
            tables.insert(
                name.to_owned(),
                json!({
                    "$ref": format!("#/$defs/{definition}"),
                    "description": description,
                    "default": defaults.tables.get(name),
                }),
            );
        }
        let names = catalog.models.iter().map(
            |(name, kind)| json!({ "description": kind.plugin.summary(), "type": "string", "const": name }),
        );
        let names: Vec<Json> = names.collect();
        self.all.insert(
            "Architecture".into(),
            json!({ "description": "Model architecture.", "oneOf": names }),
        );
        let section = &mut self.all["ModelConfig"];
        section["additionalProperties"] = false.into();
        let description = section["properties"]["architecture"]["description"].take();
        section["properties"]["architecture"] = json!({
            "$ref": "#/$defs/Architecture",
            "description": description,
            "default": defaults.architecture,
        });
        if let Some(properties) = section["properties"].as_object_mut() {
            properties.extend(tables);
        }
    }

    /// What a table of `kind` may have.
    fn variant(&mut self, kind: &PluginKind, common: &Json) -> Json {
        let own = self.adopt(kind);
        let mut properties = Object::new();
        for of in [common, &own] {
            properties.extend(of["properties"].as_object().cloned().unwrap_or_default());
        }
        let summary = kind.summary();
        properties.insert(
            "kind".into(),
            json!({ "description": summary, "type": "string", "const": kind.name() }),
        );
        let mut required = vec![Json::from("kind")];
        required.extend(own["required"].as_array().cloned().unwrap_or_default());
        json!({
            "description": summary,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }

    /// The schema of a plug-in's parameters, its definitions among ours: under their own names, or with the plug-in's name
    /// in front where another definition has theirs.
    fn adopt(&mut self, kind: &PluginKind) -> Json {
        let mut schema = kind.schema().clone();
        let own = match schema
            .as_object_mut()
            .and_then(|schema| schema.shift_remove("$defs"))
        {
            Some(Json::Object(own)) => own,
            _ => return schema,
        };
        let clashes =
            |name: &str, definition: &Json| self.all.get(name).is_some_and(|known| known != definition);
        // Of a definition whose references are renamed its own name must be another, too.
        let rename = own.iter().any(|(name, definition)| clashes(name, definition));
        let named = |name: &str| match rename {
            true => format!("{}.{name}", kind.name()),
            false => name.to_owned(),
        };
        for (name, mut definition) in own {
            if rename {
                rename_references(&mut definition, &named);
            }
            self.all.insert(named(&name), definition);
        }
        if rename {
            rename_references(&mut schema, &named);
        }
        schema
    }
}

fn rename_references(schema: &mut Json, named: &impl Fn(&str) -> String) {
    match schema {
        Json::Object(object) => {
            for (key, value) in object {
                match value {
                    Json::String(reference) if key == "$ref" => {
                        if let Some(name) = reference.strip_prefix("#/$defs/") {
                            *reference = format!("#/$defs/{}", named(name));
                        }
                    }
                    value => rename_references(value, named),
                }
            }
        }
        Json::Array(entries) => entries
            .iter_mut()
            .for_each(|entry| rename_references(entry, named)),
        _ => {}
    }
}
