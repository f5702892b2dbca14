//! Rules on several keys at once, which the JSON schema cannot say.

mod algorithm;
mod branching;
mod exploration;
mod model;
mod path;
mod precision;
mod records;
mod staleness;
mod watch;

use std::collections::BTreeSet;

use crate::catalog::{AlgorithmFacts, Catalog, DataFacts, ImageFacts};
use crate::diagnostic::{Diagnostic, Severity};
use crate::locate;
use crate::sections::{Config, RewardConfig};
use crate::tree::{Node, Segment, Value, dotted};

/// Checks every rule. Rules that read a key in `bad` are passed over: its value is not the user's.
pub(crate) fn check(
    catalog: &Catalog,
    config: &Config,
    document: &Node,
    bad: &[Vec<Segment>],
) -> Vec<Diagnostic> {
    let mut rules = Rules::new(Some(catalog), config, document, bad);
    model::check(&mut rules);
    path::check(&mut rules);
    exploration::check(&mut rules);
    branching::check(&mut rules);
    staleness::check(&mut rules);
    algorithm::check(&mut rules);
    precision::check(&mut rules);
    records::check(&mut rules);
    watch::check(&mut rules);
    rules.problems
}

/// What training needs beyond a config that is right in itself (which may be one for pretraining).
/// With `from_records` the algorithm learns from the data set: rewards then score evaluations alone, and weights may be random.
pub(crate) fn check_training(
    config: &Config,
    from_records: bool,
    document: &Node,
    bad: &[Vec<Segment>],
) -> Vec<Diagnostic> {
    let mut rules = Rules::new(None, config, document, bad);
    if from_records {
        if config.evaluation.every > 0 && config.effective_eval_rewards().is_empty() {
            rules
                .error(
                    crate::codes::RULE_NO_REWARD,
                    &["rewards", "eval_rewards", "evaluation.every"],
                    "there is no reward to evaluate by",
                )
                .help("add a `[[rewards]]` table with its `kind`, or set `evaluation.every = 0`");
        }
        return rules.problems;
    }
    if config.rewards.is_empty() {
        rules
            .error(
                crate::codes::RULE_NO_REWARD,
                &["rewards"],
                "there is no reward to train for",
            )
            .help("add a `[[rewards]]` table with its `kind`");
    } else if config.rewards.iter().all(|reward| reward.weight == 0.0) {
        let message = "every reward has the weight 0, so nothing would be learned";
        rules
            .error(crate::codes::RULE_NO_REWARD, &["rewards.0.weight"], message)
            .help("give one a weight; what is to be measured only belongs in `[[eval_rewards]]`");
    }
    if config.model.weights.is_none() && config.model.path.is_none() {
        rules
            .error(
                crate::codes::RULE_NO_WEIGHTS,
                &["model.weights"],
                "there are no weights to start from, and a random model makes nothing that a reward could tell apart",
            )
            .help(
                "set `model.path` to a diffusers folder, or `model.weights` to a safetensors file; `flow-train pretrain` makes one",
            );
    }
    rules.problems
}

/// What rules are checked with: the config, and where what they find goes.
pub struct Rules<'a> {
    catalog: Option<&'a Catalog>,
    config: &'a Config,
    document: &'a Node,
    bad: BTreeSet<Vec<Segment>>,
    problems: Vec<Diagnostic>,
}

/// A diagnostic that was just added, or nothing if its rule reads a bad key.
pub struct Added<'a>(Option<&'a mut Diagnostic>);

impl Added<'_> {
    /// How to mend it: a half-sentence without a full stop.
    pub fn help(self, help: impl Into<String>) {
        if let Some(diagnostic) = self.0 {
            diagnostic.help = Some(help.into());
        }
    }
}

/// A dotted path of bare keys and indices.
fn segments(path: &str) -> Vec<Segment> {
    path.split('.')
        .map(|part| match part.parse() {
            Ok(index) => Segment::Index(index),
            Err(_) => Segment::Key(part.to_owned()),
        })
        .collect()
}

/// Whether a value is the default, be it written as `1` or as `1.0`.
fn same_value(node: &Node, default: Option<&serde_json::Value>) -> bool {
    let default = default
        .and_then(crate::tree::from_json)
        .and_then(|default| default.to_json());
    default.is_some() && node.to_json() == default
}

impl<'a> Rules<'a> {
    fn new(
        catalog: Option<&'a Catalog>,
        config: &'a Config,
        document: &'a Node,
        bad: &[Vec<Segment>],
    ) -> Self {
        // Entries of lists move when one is taken out, so the whole list counts as bad.
        let list = |path: &Vec<Segment>| {
            let keys = path
                .iter()
                .take_while(|segment| matches!(segment, Segment::Key(_)));
            keys.cloned().collect()
        };
        Self {
            catalog,
            config,
            document,
            bad: bad.iter().map(list).collect(),
            problems: Vec::new(),
        }
    }

    /// The config.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// What the config's data set is to a model; nothing if that is not known.
    pub fn data_facts(&self) -> Option<DataFacts> {
        self.catalog?.data_facts(self.config)
    }

    /// The images that the model makes itself; nothing for a model of latents, which an autoencoder decodes, or if they are not
    /// known.
    pub fn pixel_images(&self) -> Option<ImageFacts> {
        let images = self.data_facts()?.images;
        images.filter(|_| !self.config.model.works_in_latents())
    }

    /// What the config's algorithm asks of a run; nothing if that is not known.
    pub fn algorithm_facts(&self) -> Option<AlgorithmFacts> {
        self.catalog?.algorithm_facts(self.config)
    }

    /// Images of a record of the data set, if the config's algorithm learns from these; none if it learns from rollouts, or is not known.
    pub fn rows_of_record(&self) -> Option<usize> {
        self.catalog?.rows_of_record(self.config)
    }

    /// Whether the config's algorithm is known, and learns from rollouts.
    pub(crate) fn learns_from_rollouts(&self) -> bool {
        let catalog = self.catalog.map(Catalog::algorithms);
        let kind = catalog.and_then(|algorithms| algorithms.get(&self.config.algorithm.kind));
        kind.is_some_and(|kind| kind.rows_of_record().is_none())
    }

    /// Adds an error on `paths`, the likeliest culprit first; it points at the first of them that somebody wrote.
    pub fn error(&mut self, code: &'static str, paths: &[&str], message: impl Into<String>) -> Added<'_> {
        self.add(Severity::Error, code, paths, message.into())
    }

    /// Adds a warning, as [`error`](Self::error) does.
    pub fn warning(&mut self, code: &'static str, paths: &[&str], message: impl Into<String>) -> Added<'_> {
        self.add(Severity::Warning, code, paths, message.into())
    }

    /// Adds a diagnostic on `paths`, the likeliest culprit first; it points at the first of them that somebody wrote.
    fn add(&mut self, severity: Severity, code: &'static str, paths: &[&str], message: String) -> Added<'_> {
        let paths: Vec<Vec<Segment>> = paths.iter().map(|path| segments(path)).collect();
        let overlaps = |path: &Vec<Segment>| {
            self.bad.iter().any(|bad| {
                let common = bad.len().min(path.len());
                bad[..common] == path[..common]
            })
        };
        if paths.iter().any(overlaps) {
            return Added(None);
        }
        let mut paths = paths.iter().map(|path| dotted(path));
        let diagnostic = Diagnostic::new(severity, code, message)
            .path(paths.next().unwrap_or_default())
            .related(paths);
        self.problems.push(locate::place(self.document, diagnostic));
        Added(self.problems.last_mut())
    }

    /// Every path of the config with its key.
    fn paths(&self) -> Vec<(String, std::path::PathBuf)> {
        self.catalog
            .map_or_else(Vec::new, |catalog| crate::anchor::paths(catalog, self.config))
    }

    /// Checks the rules of a reward's plug-in, whose table is at `path`.
    fn check_reward(&mut self, reward: &RewardConfig, path: &str) {
        if let Some(catalog) = self.catalog
            && let Some(kind) = catalog.rewards().get(&reward.kind)
        {
            kind.check(catalog.rewards(), &reward.params, self, path);
        }
    }

    /// Checks the rules of the architecture in use.
    fn check_model(&mut self) {
        if let Some(kind) = self.catalog.and_then(|catalog| catalog.model(self.config)) {
            // An architecture holds no other within.
            let none = flow_registry::Registry::new("architecture");
            let path = format!("model.{}", kind.plugin.name());
            kind.plugin
                .check(&none, &self.config.model.dimensions(), self, &path);
        }
    }

    /// Checks the rules of the algorithm's plug-in.
    fn check_algorithm(&mut self) {
        let algorithm = &self.config.algorithm;
        if let Some(kind) = self
            .catalog
            .and_then(|catalog| catalog.algorithms().get(&algorithm.kind))
        {
            // An algorithm holds no other within.
            let none = flow_registry::Registry::new("algorithm");
            kind.plugin.check(&none, &algorithm.params, self, "algorithm");
        }
    }

    /// Checks the rules of the data set's plug-in.
    fn check_data(&mut self) {
        let data = &self.config.data;
        if let Some(kind) = self.catalog.and_then(|catalog| catalog.data().get(&data.kind)) {
            // A data set holds no other within.
            kind.plugin.check(
                &flow_registry::Registry::new("data set"),
                &data.params,
                self,
                "data",
            );
        }
    }

    /// A name at `path` that no plug-in has.
    pub(crate) fn unknown_name(&mut self, path: &str, asked: &str, allowed: Vec<String>, message: String) {
        let near = crate::suggest::nearest(asked, allowed.iter().map(|name| name.trim_matches('"')));
        let near = near.map(str::to_owned);
        if let Added(Some(diagnostic)) = self.error(crate::codes::NOT_ALLOWED, &[path], message) {
            diagnostic.help = near.as_ref().map(|near| format!("did you mean \"{near}\"?"));
            diagnostic.nearest = near;
            diagnostic.allowed = allowed;
        }
    }

    /// Adds what was found otherwise, and knows its paths.
    pub(crate) fn extend(&mut self, found: Vec<Diagnostic>) {
        let placed = found.into_iter().map(|one| locate::place(self.document, one));
        self.problems.extend(placed);
    }

    /// Whether somebody wrote the key `path`.
    pub fn is_written(&self, path: &str) -> bool {
        let node = self.document.lookup(&segments(path));
        node.is_some_and(|node| node.origin.is_some())
    }

    /// The keys below `path` that somebody wrote and that say other than the defaults. A config that is written out in
    /// full repeats the defaults of what it does not use, which is no mistake.
    pub fn written_below(&self, path: &str) -> Vec<String> {
        fn collect(node: &Node, path: &str, default: Option<&serde_json::Value>, out: &mut Vec<String>) {
            match &node.value {
                Value::Table(table) if !table.is_empty() => {
                    for (key, child) in table {
                        let default = default.and_then(|default| default.get(key));
                        collect(child, &format!("{path}.{key}"), default, out);
                    }
                }
                _ if node.origin.is_some() && !same_value(node, default) => out.push(path.to_owned()),
                _ => {}
            }
        }
        let mut out = Vec::new();
        if let Some(node) = self.document.lookup(&segments(path)) {
            let defaults = self.catalog.map(Catalog::defaults);
            let defaults = serde_json::to_value(defaults).unwrap_or_default();
            collect(
                node,
                path,
                defaults.pointer(&format!("/{}", path.replace('.', "/"))),
                &mut out,
            );
        }
        out
    }

    /// Adds an error unless `small` divides `large`, each a path and its value.
    pub fn divides(&mut self, small: (&str, usize), large: (&str, usize)) {
        if small.1 != 0 && large.1.is_multiple_of(small.1) {
            return;
        }
        let message = format!(
            "`{}` ({}) must be a multiple of `{}` ({})",
            large.0, large.1, small.0, small.1
        );
        let lower = large.1 - large.1.checked_rem(small.1).unwrap_or(0);
        let near = [lower, lower + small.1]
            .into_iter()
            .filter(|n| *n > 0)
            .map(|n| n.to_string());
        self.error(crate::codes::RULE_MODEL_SHAPE, &[large.0, small.0], message)
            .help(format!(
                "nearest that would do for `{}`: {}",
                large.0,
                near.collect::<Vec<_>>().join(" or ")
            ));
    }
}
