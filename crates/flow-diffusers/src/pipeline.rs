//! A pipeline's folder and its `model_index.json`.

use crate::component::{Component, Kind};
use crate::looks::Looks;
use crate::names::list;
use crate::{Family, FolderError, Problems, Scheduler, Tensors, WeightFiles, read_json};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub(crate) const INDEX_FILE: &str = "model_index.json";

/// The folder of a whole model, as `DiffusionPipeline.save_pretrained` writes it and the hub has it.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineFolder {
    folder: PathBuf,
    class: String,
    version: Option<String>,
    components: Vec<(String, Option<Component>)>,
    settings: Map<String, Value>,
}

impl PipelineFolder {
    /// Reads `model_index.json` of the folder `path`, which may be named itself. Nothing else is read yet.
    ///
    /// # Errors
    /// [`FolderError::NotAPipeline`] with what the path looks like and what to do; [`FolderError::File`] for a damaged index.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let folder = match path.file_name() {
            Some(name) if name == INDEX_FILE && path.is_file() => path.parent().unwrap_or(Path::new(".")),
            _ => path,
        };
        let file = folder.join(INDEX_FILE);
        if !folder.is_dir() || (!file.exists() && !file.is_symlink()) {
            return Err(FolderError::NotAPipeline {
                path: path.to_owned(),
                looks: Looks::of(path),
            });
        }
        let index: Map<String, Value> = read_json(&file)?.ok_or_else(|| FolderError::File {
            path: file.clone(),
            problem: "it is a link to a file that is not there; the download was not finished, so download the folder again".into(),
        })?;
        Self::parse(folder, &file, index)
    }

    fn parse(folder: &Path, file: &Path, index: Map<String, Value>) -> Result<Self, FolderError> {
        let refused = |problem: String| FolderError::File {
            path: file.to_owned(),
            problem,
        };
        let mut class = None;
        let mut version = None;
        let mut components = Vec::new();
        let mut settings = Map::new();
        for (key, value) in index {
            match (key.as_str(), &value) {
                ("_class_name", Value::String(name)) => class = Some(name.clone()),
                ("_diffusers_version", Value::String(number)) => version = Some(number.clone()),
                (key, _) if key.starts_with('_') => {}
                (_, Value::Array(pair)) => match pair.as_slice() {
                    [Value::Null, Value::Null] => components.push((key, None)),
                    [Value::String(library), Value::String(class)] => {
                        // A name with folders could point anywhere; diffusers writes none.
                        if Path::new(&key).file_name() != Some(key.as_ref()) {
                            return Err(refused(format!("`{key}` is no name of a folder in this one")));
                        }
                        let component = Component {
                            folder: folder.join(&key),
                            name: key.clone(),
                            library: library.clone(),
                            class: class.clone(),
                        };
                        components.push((key, Some(component)));
                    }
                    _ => {
                        settings.insert(key, value);
                    }
                },
                _ => {
                    settings.insert(key, value);
                }
            }
        }
        let class = class.ok_or_else(|| {
            refused(
                "it has no `_class_name`, so it does not say what pipeline this is; download it again".into(),
            )
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            class,
            version,
            components,
            settings,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its class in diffusers.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The version of diffusers that wrote it.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Settings of the pipeline itself, such as `boundary_ratio`.
    pub fn settings(&self) -> &Map<String, Value> {
        &self.settings
    }

    /// The components that it has, in the order of its index.
    pub fn components(&self) -> impl Iterator<Item = &Component> {
        self.components
            .iter()
            .filter_map(|(_, component)| component.as_ref())
    }

    /// Whether a component is named and left out, `[null, null]`.
    pub fn is_left_out(&self, name: &str) -> bool {
        self.components
            .iter()
            .any(|(key, component)| key == name && component.is_none())
    }

    /// The component `name`, or `None` if it is left out or not named.
    pub fn find(&self, name: &str) -> Option<&Component> {
        self.components().find(|component| component.name == name)
    }

    /// The component `name`.
    ///
    /// # Errors
    /// [`FolderError::Folder`] if the pipeline does not have it, with those it has.
    pub fn component(&self, name: &str) -> Result<&Component, FolderError> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> = self.components().map(|it| it.name.as_str()).collect();
            let problem = if self.is_left_out(name) {
                format!("its `{INDEX_FILE}` leaves the component `{name}` out ([null, null])")
            } else {
                let hint = flow_registry::nearest(name, names.iter().copied())
                    .map(|near| format!("; the nearest is `{near}`"))
                    .unwrap_or_default();
                format!("it has no component `{name}`{hint}. It has {}", list(&names, 20))
            };
            FolderError::Folder {
                folder: self.folder.clone(),
                problem,
            }
        })
    }

    /// Its family.
    ///
    /// # Errors
    /// [`FolderError::File`] for a pipeline of another kind, with those that are read.
    pub fn family(&self) -> Result<Family, FolderError> {
        Family::from_class(&self.class).ok_or_else(|| {
            let known = Family::ALL.map(Family::class);
            let hint = flow_registry::nearest(&self.class, known)
                .map(|near| format!("; the nearest is `{near}`"))
                .unwrap_or_default();
            FolderError::File {
                path: self.folder.join(INDEX_FILE),
                problem: format!(
                    "it is of a `{}`, and pipelines that are read are {}{hint}",
                    self.class,
                    list(&known, known.len())
                ),
            }
        })
    }

    /// The scheduler.
    ///
    /// # Errors
    /// [`FolderError::Folder`] if there is none; as [`Scheduler::read`].
    pub fn scheduler(&self) -> Result<Scheduler, FolderError> {
        let component = self.component("scheduler")?;
        Scheduler::read(&component.folder, &component.class)
    }

    /// Opens every component that the family needs, headers only, and gives the family.
    ///
    /// # Errors
    /// [`FolderError::Pipeline`] with everything that is missing, damaged, cut off, of another class or not read; as
    /// [`Self::family`].
    pub fn check(&self, variant: Option<&str>) -> Result<Family, FolderError> {
        let family = self.family()?;
        let mut problems = self.beyond();
        for part in family.parts() {
            let Some(component) = self.find(part.name) else {
                if !(part.may_be_absent && self.is_left_out(part.name)) {
                    problems.push(format!(
                        "`{INDEX_FILE}` has no `{}`, which is a {}",
                        part.name, part.classes[0]
                    ));
                }
                continue;
            };
            if !part.classes.contains(&component.class.as_str()) {
                problems.push(format!(
                    "`{}` is a {}, and what is read is a {}",
                    part.name,
                    component.class,
                    part.classes.join(" or a ")
                ));
                continue;
            }
            if let Err(error) = self.check_component(component, variant) {
                problems.push(error.to_string());
            }
        }
        problems.extend(self.halves_of_pairs(family));
        problems.extend(self.unknown_variant(variant)?);
        if problems.is_empty() {
            return Ok(family);
        }
        Err(FolderError::Pipeline {
            folder: self.folder.clone(),
            class: self.class.clone(),
            problems: Problems(problems),
        })
    }

    fn check_component(&self, component: &Component, variant: Option<&str>) -> Result<(), FolderError> {
        if !component.folder.is_dir() {
            return Err(FolderError::Folder {
                folder: component.folder.clone(),
                problem: format!(
                    "there is no such folder, and `{INDEX_FILE}` names it; the download was not finished, or not the whole folder \
                     was copied: download it again, which goes on where it stopped"
                ),
            });
        }
        match component.kind() {
            Kind::Model => {
                component.config()?;
                let files = component.weight_files(variant)?;
                Tensors::open(&files)?;
            }
            Kind::Scheduler => {
                Scheduler::read(&component.folder, &component.class)?;
            }
            Kind::Tokenizer | Kind::Other => {}
        }
        Ok(())
    }

    /// Models that come with more than is computed here.
    fn beyond(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.find("transformer_2").is_some() {
            problems.push(
                "it has two transformers (`transformer_2`), one for high and one for low noise, as Wan 2.2; one is read, as in Wan 2.1"
                    .into(),
            );
        }
        if self.settings.get("expand_timesteps") == Some(&Value::Bool(true)) {
            problems.push("`expand_timesteps` is true, as for Wan 2.2's 5B model, which is not read".into());
        }
        problems
    }

    /// A tokenizer without its encoder, or the other way round.
    fn halves_of_pairs(&self, family: Family) -> Vec<String> {
        let optional = family.parts().iter().filter(|part| part.may_be_absent);
        optional
            .filter_map(|part| {
                let number = part.name.strip_prefix("text_encoder")?;
                let tokenizer = format!("tokenizer{number}");
                match (self.find(part.name), self.find(&tokenizer)) {
                    (Some(_), None) => Some(format!(
                        "it has `{}` and no `{tokenizer}`; both are needed, or neither",
                        part.name
                    )),
                    (None, Some(_)) => Some(format!(
                        "it has `{tokenizer}` and no `{}`; both are needed, or neither",
                        part.name
                    )),
                    _ => None,
                }
            })
            .collect()
    }

    /// A variant that no component has.
    fn unknown_variant(&self, variant: Option<&str>) -> Result<Option<String>, FolderError> {
        let Some(asked) = variant else {
            return Ok(None);
        };
        let mut all: Vec<String> = Vec::new();
        for component in self
            .components()
            .filter(|it| it.kind() == Kind::Model && it.folder.is_dir())
        {
            all.extend(WeightFiles::variants(&component.folder)?);
        }
        all.sort();
        all.dedup();
        if all.iter().any(|variant| variant == asked) {
            return Ok(None);
        }
        Ok(Some(match all.as_slice() {
            [] => format!("no component has a variant `{asked}`, nor any other; leave the variant out"),
            all => format!(
                "no component has a variant `{asked}`; there are {}",
                list(all, 12)
            ),
        }))
    }
}
