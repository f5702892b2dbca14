//! `explain`: what a key of the config or a parameter of an accelerator means, or what is behind the code of an error or
//! warning.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_accel::{AccelerationError, Params};
use flow_config::{Catalog, FieldDoc};
use flow_train::Registries;

/// Prints the documentation of `key`, of every key of that name, or of an accelerator or its parameter (`name.parameter`); or
/// rule, rationale and example of a code.
pub fn run(key: &str) -> Result<(), Failure> {
    if let Some(known) = flow_validate::explain(key) {
        return terminal::print(&known.to_string());
    }
    let registries = Registries::built_in().or_failed()?;
    let catalog = registries.catalog();
    if let Some(docs) = flow_config::explain(&catalog, key) {
        return terminal::print(&docs.to_string());
    }
    let mut found = flow_config::find_key(&catalog, key);
    // The learning rate of a run before that of some algorithm's network.
    found.sort_by_key(|path| path.matches('.').count());
    if !found.is_empty() {
        let docs: Vec<String> = found
            .iter()
            .filter_map(|path| flow_config::explain(&catalog, path))
            .map(|docs| docs.to_string())
            .collect();
        return terminal::print(&docs.join("\n"));
    }
    let name = key.split('.').next().unwrap_or_default();
    if let Some(kind) = registries.accelerators.kind(name)
        && let Some(docs) = flow_config::explain_params(name, kind.schema().as_value(), key)
    {
        return terminal::print(&docs.to_string());
    }
    let values = values(&registries, &catalog, key);
    if !values.is_empty() {
        return terminal::print(&values);
    }
    if let Some(text) = not_of_configs(&registries, key) {
        return terminal::print(&text);
    }
    let keys = flow_config::all_keys(&catalog);
    let names = flow_config::names(&catalog);
    let params: Vec<String> = params(&registries)
        .into_iter()
        .flat_map(|(name, docs)| {
            let allowed = docs.allowed.into_iter().map(|(value, _)| value);
            [name, docs.path].into_iter().chain(allowed).collect::<Vec<_>>()
        })
        .collect();
    let codes = flow_validate::all_codes().map(|known| known.code);
    let options = flow_runtime::OPTIONS.iter().map(|option| option.path);
    let known: Vec<&str> = [&names, &keys, &params]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .chain(codes)
        .chain(options)
        .collect();
    let nearest = nearest_member(key, &known).or_else(|| flow_config::nearest(key, known.iter().copied()));
    let hint = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "`flow-train schema` prints all keys, `flow-train list codes` all codes".into(),
    };
    Err(Failure::Input(format!(
        "there is no key, value or code `{key}`; {hint}"
    )))
}

/// What is known of a name that stands for no key: an option of the runtimes, or an accelerator or a key of other programs.
fn not_of_configs(registries: &Registries, name: &str) -> Option<String> {
    let removed = || match registries.accelerators.build(name, &Params::new()) {
        Err(error @ AccelerationError::Removed(_)) => {
            Some(format!("{}\n  help: {}\n", error.message(), error.help()))
        }
        _ => None,
    };
    flow_runtime::explain(name)
        .or_else(removed)
        .or_else(|| flow_config::explain_elsewhere(name))
}

/// Of `GROUP::NAME` and `SECTION.KEY`: the nearest name of that form, or if none is near, what is nearest in the group that was
/// named or probably meant, however far.
fn nearest_member<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let separator = ["::", "."].into_iter().find(|one| written.contains(one))?;
    let parts = |name: &'a str| {
        name.rsplit_once(separator)
            .map(|(group, member)| (group, member, name))
    };
    let members: Vec<(&str, &str, &str)> = known.iter().copied().filter_map(parts).collect();
    let near = flow_config::nearest(written, members.iter().map(|(.., name)| *name));
    if near.is_some() {
        return near;
    }
    let (group, member) = written.rsplit_once(separator)?;
    let group = flow_config::nearest(group, members.iter().map(|(group, ..)| *group))?;
    let of_group = members.iter().filter(|(of, ..)| *of == group);
    let nearest = of_group.max_by(|(_, one, _), (_, other, _)| {
        let likeness = |known: &str| flow_config::likeness(member, known);
        likeness(one).total_cmp(&likeness(other))
    });
    nearest.map(|(.., name)| *name)
}

/// The accelerators and their parameters, each parameter under the accelerator's name.
fn params(registries: &Registries) -> Vec<(String, FieldDoc)> {
    let kinds = registries.accelerators.kinds();
    let of_kind = |kind: &flow_accel::AcceleratorKind| {
        let (name, schema) = (kind.name().to_owned(), kind.schema());
        let docs = flow_config::explain_params(&name, schema.as_value(), &name);
        let keys = docs.map(|docs| docs.keys).unwrap_or_default();
        let each = keys.into_iter().filter_map(|(key, _)| {
            flow_config::explain_params(&name, schema.as_value(), &format!("{name}.{key}"))
        });
        each.map(|docs| (name.clone(), docs)).collect::<Vec<_>>()
    };
    kinds.flat_map(of_kind).collect()
}

/// What is chosen by the name `value`, of the config's keys and of accelerators' parameters.
fn values(registries: &Registries, catalog: &Catalog, value: &str) -> String {
    let in_config = flow_config::find_value(catalog, value);
    let in_params = params(registries).into_iter().filter_map(|(_, docs)| {
        let (_, meaning) = docs.allowed.into_iter().find(|(name, _)| name == value)?;
        Some((docs.path, meaning))
    });
    let mut text = String::new();
    for (key, meaning) in in_config.into_iter().chain(in_params) {
        let section = key.rsplit_once('.').map_or(key.as_str(), |(section, _)| section);
        text.push_str(&format!(
            "{key} = \"{value}\"\n    {meaning}\n  more:    flow-train explain {section}\n"
        ));
    }
    text
}
