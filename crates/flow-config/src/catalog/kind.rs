//! One plug-in, described.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use flow_registry::Registry;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::diagnostic::Diagnostic;
use crate::params::check_params;
use crate::rules::Rules;
use crate::schema::tidy;

type Object = Map<String, Json>;
type Complete = dyn Fn(&Object) -> Result<Object, ParamsError> + Send + Sync;
type Check = dyn Fn(&Object, &mut Rules<'_>, &str) + Send + Sync;

/// What is wrong with a plug-in's parameters, all of it, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// A plug-in's description: what a config may say of it, before it is built.
#[derive(Clone)]
pub struct PluginKind {
    name: String,
    summary: String,
    schema: Json,
    complete: Arc<Complete>,
    check: Option<Arc<Check>>,
    paths: &'static [&'static str],
    words: &'static [&'static str],
    wraps: Option<(&'static str, &'static str)>,
}

impl PluginKind {
    /// A plug-in whose parameters are a `P`, which should carry `#[serde(deny_unknown_fields)]`. `summary` is one sentence for
    /// lists, editors and `explain`.
    pub fn new<P>(name: &str, summary: &str) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let mut schema = schemars::schema_for!(P).to_value();
        tidy(&mut schema);
        let complete = |params: &Object| {
            let typed: P = typed(params)?;
            match serde_json::to_value(&typed) {
                // TOML has no `null`: an option that nobody gave is not there.
                Ok(Json::Object(params)) => {
                    Ok(params.into_iter().filter(|(_, value)| !value.is_null()).collect())
                }
                Ok(other) => Err(ParamsError(format!(
                    "parameters must be a table, and are `{other}`"
                ))),
                Err(error) => Err(ParamsError(error.to_string())),
            }
        };
        Self {
            name: name.to_owned(),
            summary: summary.to_owned(),
            schema,
            complete: Arc::new(complete),
            check: None,
            paths: &[],
            words: &[],
            wraps: None,
        }
    }

    /// With rules that a schema cannot say: on several parameters, or on a parameter and the rest of the config. The last
    /// argument of `check` is the dotted path of the plug-in's table.
    pub fn with_rules<P>(mut self, check: fn(&P, &mut Rules<'_>, &str)) -> Self
    where
        P: DeserializeOwned + 'static,
    {
        self.check = Some(Arc::new(move |params, rules, path| {
            // What cannot be read was reported as such.
            if let Ok(typed) = typed::<P>(params) {
                check(&typed, rules, path);
            }
        }));
        self
    }

    /// With parameters that are paths of files or folders; `words` in their place are none. Of the tables of a list, the list's key
    /// and the table's: `teachers.adapter`.
    pub fn with_paths(mut self, keys: &'static [&'static str], words: &'static [&'static str]) -> Self {
        self.paths = keys;
        self.words = words;
        self
    }

    /// With a plug-in of the same sort within: the parameter `name` names it, the parameter `params` is its table.
    pub fn wrapping(mut self, name: &'static str, params: &'static str) -> Self {
        self.wraps = Some((name, params));
        self
    }

    /// Its name, as a config has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is, in one sentence.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// JSON schema of its parameters.
    pub fn schema(&self) -> &Json {
        &self.schema
    }

    /// What its schema says against parameters at the dotted `path` of a config: everything at once.
    pub fn problems(&self, params: &Object, path: &str) -> Vec<Diagnostic> {
        check_params(&Json::Object(params.clone()), &self.schema, path)
    }

    /// `params` with the defaults of what is not given.
    ///
    /// # Errors
    /// What is wrong with the parameters, all of it.
    pub fn complete(&self, params: &Object) -> Result<Object, ParamsError> {
        let problems = self.problems(params, "params");
        if !problems.is_empty() {
            let words: Vec<String> = problems.iter().map(in_words).collect();
            return Err(ParamsError(words.join("; ")));
        }
        (self.complete)(params)
    }

    /// The parameters as the plug-in's own type.
    ///
    /// # Errors
    /// What is wrong with the parameters, all of it.
    pub fn read<P: DeserializeOwned>(&self, params: &Object) -> Result<P, ParamsError> {
        typed(&self.complete(params)?)
    }

    /// Checks the plug-in's rules; `kinds` are those of its sort.
    pub(crate) fn check(&self, kinds: &Registry<Self>, params: &Object, rules: &mut Rules<'_>, path: &str) {
        if let Some(check) = &self.check {
            check(params, rules, path);
        }
        let Some((name, inner)) = self.wraps else { return };
        let (Some(asked), Some(Json::Object(inner_params))) =
            (params.get(name).and_then(Json::as_str), params.get(inner))
        else {
            return;
        };
        match kinds.find(asked) {
            Ok(kind) => {
                let path = join_key(path, inner);
                let problems = kind.problems(inner_params, &path);
                if problems.is_empty() {
                    kind.check(kinds, inner_params, rules, &path);
                }
                rules.extend(problems);
            }
            Err(error) => {
                let key = join_key(path, name);
                let allowed = kinds.names().map(|name| format!("\"{name}\"")).collect();
                rules.unknown_name(&key, asked, allowed, error.to_string());
            }
        }
    }

    /// The plug-in that these parameters name within: its name and its parameters.
    pub fn wrapped<'p>(&self, params: &'p Object) -> Option<(&'p str, &'p Object)> {
        let (name, table) = self.wraps?;
        Some((params.get(name)?.as_str()?, params.get(table)?.as_object()?))
    }

    /// The paths among the parameters, with their keys.
    pub(crate) fn paths_mut<'p>(&self, params: &'p mut Object) -> Vec<(String, &'p mut String)> {
        let mut paths = Vec::new();
        for (key, value) in params.iter_mut() {
            match value {
                Json::String(text) if self.is_path(key, text) => paths.push((key.clone(), text)),
                Json::Array(tables) => paths.extend(self.paths_of_tables(key, tables)),
                _ => {}
            }
        }
        paths
    }

    /// The paths in the tables of a list, with their keys: `teachers.0.adapter`.
    fn paths_of_tables<'p>(&self, list: &str, tables: &'p mut [Json]) -> Vec<(String, &'p mut String)> {
        let mut paths = Vec::new();
        for (index, table) in tables.iter_mut().enumerate() {
            let Json::Object(table) = table else { continue };
            for (key, value) in table.iter_mut() {
                if let Json::String(text) = value
                    && self.is_path(&join_key(list, key), text)
                {
                    paths.push((format!("{list}.{index}.{key}"), text));
                }
            }
        }
        paths
    }

    /// As [`paths_mut`](Self::paths_mut), and those of the plug-in within, whose keys stand below that of its table.
    pub(crate) fn all_paths_mut<'p>(
        &self,
        kinds: &Registry<Self>,
        params: &'p mut Object,
    ) -> Vec<(String, &'p mut String)> {
        let within = self.wraps.and_then(|(name, table)| {
            let asked = params.get(name)?.as_str()?;
            Some((kinds.find(asked).ok()?, table))
        });
        let mut paths = Vec::new();
        for (key, value) in params.iter_mut() {
            match (value, within) {
                (Json::String(text), _) if self.is_path(key, text) => paths.push((key.clone(), text)),
                (Json::Object(inner), Some((kind, table))) if key == table => {
                    let below = kind.all_paths_mut(kinds, inner).into_iter();
                    paths.extend(below.map(|(below, text)| (join_key(key, &below), text)));
                }
                _ => {}
            }
        }
        paths
    }

    fn is_path(&self, key: &str, text: &str) -> bool {
        self.paths.contains(&key) && !self.words.contains(&text)
    }

    /// `params` with paths that start at `base`, where they are relative.
    pub fn located(&self, params: &Object, base: &Path) -> Object {
        let mut params = params.clone();
        // The working directory needs no name.
        let base = if base == Path::new(".") {
            Path::new("")
        } else {
            base
        };
        for (_, path) in self.paths_mut(&mut params) {
            *path = base.join(&*path).to_string_lossy().into_owned();
        }
        params
    }

    /// The first path among `params` at which nothing is, as it is written.
    pub fn missing_path(&self, params: &Object, base: &Path) -> Option<String> {
        let mut params = params.clone();
        let paths = self.paths_mut(&mut params);
        let missing = paths.into_iter().find(|(_, path)| !base.join(&**path).exists());
        missing.map(|(_, path)| path.clone())
    }
}

impl fmt::Debug for PluginKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PluginKind")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn typed<P: DeserializeOwned>(params: &Object) -> Result<P, ParamsError> {
    serde_path_to_error::deserialize(Json::Object(params.clone())).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        ParamsError(match path.as_str() {
            "." => problem.to_string(),
            path => format!("`{path}`: {problem}"),
        })
    })
}

/// A problem with what is said of it beside the message, for those who do not show diagnostics.
fn in_words(problem: &Diagnostic) -> String {
    let allowed = problem.allowed.join(", ");
    match &problem.help {
        Some(help) => format!("{} ({help})", problem.message),
        None if allowed.is_empty() || problem.message.contains(&allowed) => problem.message.clone(),
        None => format!("{} (allowed: {allowed})", problem.message),
    }
}

/// A key below a dotted path.
pub(crate) fn join_key(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
