//! The schema as editors take it: a mistake is marked where it is, and with what is allowed there.
//!
//! schemars writes a choice as `oneOf`. A validator can say of that only that nothing in the whole table fits. Here the
//! key that chooses (`kind`, `policy`, `name`) is an `enum` of its own, and a chain of `if`, `then`, `else` holds the table
//! against the variant that is chosen and no other. Whatever [`crate::schema()`] accepts is accepted, and nothing else.
//!
//! Editors for TOML show what `properties` say, and do not look into `then`. So the keys of all variants stand beside the
//! chain, whole where all variants agree on them, with their texts alone where not. Texts of single values go to
//! `x-taplo`, which Even Better TOML shows, and into the description of their key for all other editors.
//!
//! A key that a table does not have is refused by `not` in the place of `additionalProperties: false`: a validator blames
//! the table for the one and the key for the other.

use serde_json::{Map, Value as Json, json};

type Object = Map<String, Json>;

/// Keywords that hold one schema.
const SCHEMA: [&str; 6] = ["items", "additionalProperties", "if", "then", "else", "not"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 2] = ["properties", "$defs"];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 3] = ["oneOf", "anyOf", "allOf"];
/// Keywords that say nothing of values of another type than their own.
const OF_ONE_TYPE: [&str; 18] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "required",
    "additionalProperties",
    "if",
    "then",
    "else",
];

/// The most keys that are listed where there is another.
const MOST_LISTED: usize = 40;

/// Turns a schema with `oneOf` and `anyOf`, as [`crate::schema()`] gives it, into one for editors.
///
/// What is for editors already stays as it is. References lead to `$defs` of this schema.
pub fn for_editors(schema: &mut Json) {
    each(schema, &mut choices);
    let root = schema.clone();
    each(schema, &mut |object| by_type(&root, object));
    each(schema, &mut unknown_keys);
    if let Some(Json::Object(definitions)) = schema.get_mut("$defs") {
        for (name, definition) in definitions {
            if let Some(object) = definition.as_object_mut() {
                object.entry("title").or_insert_with(|| title(name).into());
            }
        }
    }
}

/// Every schema in this one, the inner ones first.
fn each(schema: &mut Json, change: &mut impl FnMut(&mut Object)) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    for (keyword, value) in object.iter_mut() {
        match value {
            Json::Object(entries) if NAMED.contains(&keyword.as_str()) => {
                entries.values_mut().for_each(|value| each(value, change));
            }
            Json::Array(entries) if LISTS.contains(&keyword.as_str()) => {
                entries.iter_mut().for_each(|value| each(value, change));
            }
            value if SCHEMA.contains(&keyword.as_str()) => each(value, change),
            _ => {}
        }
    }
    change(object);
}

/// Tables that choose a variant, and texts of which one is chosen.
fn choices(object: &mut Object) {
    if let Some(tag) = union_tag(object) {
        union(object, &tag);
    } else if let Some(values) = texts(object) {
        object.shift_remove("oneOf");
        object.shift_remove("anyOf");
        object.insert("type".into(), "string".into());
        set_values(object, values);
    }
}

/// A value that a key may have, and what it means.
struct Value {
    name: Json,
    text: Option<String>,
}

fn text(schema: &Json) -> Option<String> {
    schema["description"].as_str().map(str::to_owned)
}

/// The values of `oneOf` or `anyOf`, if all of these are texts.
fn texts(object: &Object) -> Option<Vec<Value>> {
    let alternatives = object.get("oneOf").or(object.get("anyOf"))?.as_array()?;
    let mut values = Vec::new();
    for alternative in alternatives {
        let names = match (&alternative["const"], &alternative["enum"]) {
            (name @ Json::String(_), _) => vec![name.clone()],
            (_, Json::Array(names)) if names.iter().all(Json::is_string) => names.clone(),
            _ => return None,
        };
        let text = text(alternative);
        values.extend(names.into_iter().map(|name| Value {
            name,
            text: text.clone(),
        }));
    }
    Some(values)
}

/// Makes `object` one of these values, in a way that every editor lists and explains.
fn set_values(object: &mut Object, values: Vec<Value>) {
    explain_values(object, &values);
    let names: Vec<Json> = values.into_iter().map(|value| value.name).collect();
    object.insert("enum".into(), names.into());
}

/// Puts the texts of values where editors look for them.
fn explain_values(object: &mut Object, values: &[Value]) {
    if values.iter().all(|value| value.text.is_none()) {
        return;
    }
    let mut description = match object.get("description") {
        Some(Json::String(text)) => format!("{text}\n"),
        _ => String::new(),
    };
    for value in values {
        let name = value.name.as_str().unwrap_or_default();
        let text = value.text.as_deref().unwrap_or_default();
        description.push_str(&format!("\n- `{name}`: {text}"));
    }
    object.insert("description".into(), description.trim_start().into());
    let texts: Vec<Option<&str>> = values.iter().map(|value| value.text.as_deref()).collect();
    object.insert("x-taplo".into(), json!({ "docs": { "enumValues": texts } }));
}

/// The key by which the tables of `oneOf` differ, if they are the variants of one choice.
fn union_tag(object: &Object) -> Option<String> {
    let variants = object.get("oneOf")?.as_array()?;
    let candidates = variants.first()?["properties"].as_object()?;
    let chooses = |key: &str| {
        variants.iter().all(|variant| {
            let required = variant["required"].as_array();
            tag_name(&variant["properties"][key]).is_some()
                && required.is_some_and(|keys| keys.iter().any(|one| one == key))
        })
    };
    candidates.keys().find(|key| chooses(key)).cloned()
}

/// The name that a tag has in a variant: `const`, or `anyOf` of it and of a pattern for other spellings.
fn tag_name(tag: &Json) -> Option<&str> {
    tag["const"]
        .as_str()
        .or_else(|| tag["anyOf"][0]["const"].as_str())
}

/// The pattern of other spellings of a tag's name.
fn tag_pattern(tag: &Json) -> Option<&str> {
    tag["anyOf"][1]["pattern"].as_str()
}

/// Turns the variants of `oneOf`, which `tag` chooses from, into a chain.
fn union(object: &mut Object, tag: &str) {
    let Some(Json::Array(variants)) = object.shift_remove("oneOf") else {
        return;
    };
    let mut properties = Map::from_iter([(tag.to_owned(), tag_property(&variants, tag))]);
    properties.extend(shared_properties(&variants, tag));
    let mut chain: Option<Object> = None;
    for variant in variants.iter().rev() {
        let mut link = Map::new();
        let chosen = match tag_pattern(&variant["properties"][tag]) {
            Some(pattern) => json!({ "type": "string", "pattern": pattern }),
            None => json!({ "const": tag_name(&variant["properties"][tag]) }),
        };
        link.insert(
            "if".into(),
            // Tombi is strict: it would warn of every other key.
            json!({ "properties": { tag: chosen }, "required": [tag], "additionalProperties": true }),
        );
        link.insert("then".into(), consequence(variant, tag, &properties));
        if let Some(rest) = chain.take() {
            link.insert("else".into(), rest.into());
        }
        chain = Some(link);
    }
    object.insert("type".into(), "object".into());
    object.insert("properties".into(), properties.into());
    object.insert("required".into(), json!([tag]));
    // The chain says which there are.
    object.insert("additionalProperties".into(), json!(true));
    object.extend(chain.unwrap_or_default());
}

/// The key that chooses: all names, and what each means.
fn tag_property(variants: &[Json], tag: &str) -> Json {
    let tags = variants.iter().map(|variant| &variant["properties"][tag]);
    let values = variants.iter().zip(tags.clone()).map(|(variant, tag)| Value {
        name: tag_name(tag).into(),
        text: text(variant).or_else(|| text(tag)),
    });
    let values: Vec<Value> = values.collect();
    let mut property = Map::from_iter([("type".to_owned(), Json::from("string"))]);
    let patterns: Vec<&str> = tags.filter_map(tag_pattern).collect();
    if patterns.is_empty() {
        set_values(&mut property, values);
        return property.into();
    }
    // Names of any case: the names complete, and only what is no spelling of any is held against them.
    explain_values(&mut property, &values);
    property.shift_remove("x-taplo");
    let names = values.iter().map(|value| match &value.text {
        Some(text) => json!({ "const": value.name, "description": text }),
        None => json!({ "const": value.name }),
    });
    let names: Vec<Json> = names.chain([json!(true)]).collect();
    property.insert("anyOf".into(), names.into());
    property.insert("if".into(), json!({ "pattern": patterns.join("|") }));
    let names: Vec<Json> = values.into_iter().map(|value| value.name).collect();
    property.insert("else".into(), json!({ "enum": names }));
    property.into()
}

/// The keys of all variants but the one that chooses.
fn shared_properties(variants: &[Json], tag: &str) -> Object {
    let mut all: Map<String, Json> = Map::new();
    for variant in variants {
        for (key, schema) in variant["properties"].as_object().into_iter().flatten() {
            if key == tag {
                continue;
            }
            match all.get_mut(key) {
                None => drop(all.insert(key.clone(), schema.clone())),
                Some(known) if known == schema => {}
                Some(known) => *known = common_text(known, schema),
            }
        }
    }
    all
}

/// What may be said of a key in whose schema variants differ: texts, which allow everything.
fn common_text(one: &Json, other: &Json) -> Json {
    let mut said: Vec<&str> = Vec::new();
    for schema in [one, other] {
        let texts = schema["description"].as_str().into_iter();
        for text in texts.flat_map(|text| text.split("\n\n")) {
            if !said.contains(&text) {
                said.push(text);
            }
        }
    }
    // Tombi is strict: of a table it would warn of every key.
    json!({ "description": said.join("\n\n"), "additionalProperties": true })
}

/// What a table of this variant must be, but for what `known` says of its keys already.
fn consequence(variant: &Json, tag: &str, known: &Object) -> Json {
    let mut then = variant.clone();
    if let Some(then) = then.as_object_mut() {
        then.shift_remove("type");
        then.shift_remove("description");
        if let Some(Json::Array(required)) = then.get_mut("required") {
            required.retain(|key| key != tag);
            if required.is_empty() {
                then.shift_remove("required");
            }
        }
        for (key, schema) in then["properties"].as_object_mut().into_iter().flatten() {
            if key == tag || known.get(key) == Some(schema) {
                *schema = json!(true);
            }
        }
    }
    then
}

/// Alternatives of different types become one schema: of what does not fit, the keywords of its own type speak.
fn by_type(root: &Json, object: &mut Object) {
    let Some(alternatives) = object
        .get("anyOf")
        .or(object.get("oneOf"))
        .and_then(Json::as_array)
    else {
        return;
    };
    let resolved: Vec<Json> = alternatives
        .iter()
        .map(|one| super::resolve(root, one).clone())
        .collect();
    let mut types: Vec<&str> = Vec::new();
    for alternative in &resolved {
        match alternative["type"].as_str() {
            Some(name) if !types.contains(&name) && !both_numbers(&types, name) => types.push(name),
            _ => return,
        }
    }
    let types = json!(types);
    let mut description = text(&Json::Object(object.clone()));
    let mut extra: Option<Object> = None;
    let mut merged = Map::new();
    for (alternative, written) in resolved.iter().zip(alternatives) {
        let mut other = Map::new();
        for (keyword, value) in alternative.as_object().into_iter().flatten() {
            match keyword.as_str() {
                "type" | "title" => {}
                "description" => {
                    let about_type = written.get("$ref").is_none();
                    if let (Some(said), Some(text)) =
                        (&mut description, value.as_str().filter(|_| about_type))
                    {
                        let name = alternative["type"].as_str().unwrap_or_default();
                        said.push_str(&format!("\n\n- {name}: {text}"));
                    }
                }
                keyword if OF_ONE_TYPE.contains(&keyword) && !merged.contains_key(keyword) => {
                    merged.insert(keyword.to_owned(), value.clone());
                }
                _ => drop(other.insert(keyword.clone(), value.clone())),
            }
        }
        if !other.is_empty() {
            let mut link = Map::from_iter([
                ("if".to_owned(), json!({ "type": alternative["type"] })),
                ("then".to_owned(), other.into()),
            ]);
            if let Some(rest) = extra.take() {
                link.insert("else".into(), rest.into());
            }
            extra = Some(link);
        }
    }
    if extra.is_some() && merged.contains_key("if") {
        return;
    }
    object.shift_remove("anyOf");
    object.shift_remove("oneOf");
    object.insert("type".into(), types);
    object.extend(merged);
    object.extend(extra.unwrap_or_default());
    if let Some(description) = description {
        object.insert("description".into(), description.into());
    }
}

/// Refuses unknown keys at themselves, and says which there are.
fn unknown_keys(object: &mut Object) {
    if object.get("additionalProperties") != Some(&json!(false)) {
        return;
    }
    let properties = object.get("properties").and_then(Json::as_object);
    let keys: Vec<String> = properties
        .into_iter()
        .flat_map(|properties| properties.keys())
        .map(|key| format!("`{key}`"))
        .collect();
    let text = match keys.len() {
        0 => "there are no keys here".to_owned(),
        count if MOST_LISTED < count => "there is no such key here".to_owned(),
        _ => format!("there is no such key here, but {}", keys.join(", ")),
    };
    let nothing = json!({ "not": { "description": text } });
    object.insert("additionalProperties".into(), nothing);
}

/// An integer is a number, too.
fn both_numbers(types: &[&str], name: &str) -> bool {
    let numbers = ["integer", "number"];
    numbers.contains(&name) && types.iter().any(|one| numbers.contains(one))
}

/// The words of a type's name: `RateSchedule` is `Rate schedule`, and `Config` at its end says nothing.
fn title(name: &str) -> String {
    let name = name.rsplit('.').next().unwrap_or(name);
    let name = name
        .strip_suffix("Config")
        .filter(|name| !name.is_empty())
        .unwrap_or(name);
    let mut title = String::new();
    for (index, letter) in name.char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            title.push(' ');
            title.push(letter.to_ascii_lowercase());
        } else {
            title.push(letter);
        }
    }
    title
}
