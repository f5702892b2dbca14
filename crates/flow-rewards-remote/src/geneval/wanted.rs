//! What a prompt's metadata asks for, in GenEval's format: `{"tag":str,"include":[{"class":str,"count":int,"color":str,
//! "position":[str,int]}],"exclude":[{"class":str,"count":int}]}`.

use flow_data::Prompt;
use serde::Deserialize;
use serde_json::Value;

/// The places of one object relative to another.
pub(super) const PLACES: [&str; 4] = ["left of", "right of", "above", "below"];
/// The tag of prompts whose objects must be surer.
const COUNTING: &str = "counting";

/// Objects that must be there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Included {
    pub class: String,
    pub count: usize,
    #[serde(default)]
    pub color: Option<String>,
    /// A place, and the number of the entry that it is relative to.
    #[serde(default)]
    pub position: Option<(String, usize)>,
}

/// Objects of which there must be fewer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Excluded {
    pub class: String,
    pub count: usize,
}

/// What an image must show.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    tag: String,
    pub include: Vec<Included>,
    #[serde(default)]
    pub exclude: Vec<Excluded>,
}

impl Wanted {
    /// What `prompt` asks for.
    ///
    /// # Errors
    /// What its metadata has instead, as a sentence.
    pub(super) fn of(prompt: &Prompt) -> Result<Self, String> {
        let metadata = Value::Object(prompt.metadata.clone());
        let wanted: Self = serde_json::from_value(metadata).map_err(|error| {
            format!(
                "its metadata is not GenEval's ({error}), such as {{\"include\": [{{\"class\": \"dog\", \"count\": 2}}]}}"
            )
        })?;
        if wanted.include.is_empty() {
            return Err("its `include` is empty, so that any image would be right".to_owned());
        }
        for (index, object) in wanted.include.iter().enumerate() {
            let of = &object.class;
            if object.count == 0 {
                return Err(format!(
                    "`include` wants 0 of `{of}`; that is what `exclude` is for"
                ));
            }
            let Some((place, relative_to)) = &object.position else {
                continue;
            };
            if !PLACES.contains(&place.as_str()) {
                return Err(format!(
                    "the place of `{of}` is `{place}`; allowed are {}",
                    PLACES.join(", ")
                ));
            }
            if *relative_to >= index {
                return Err(format!(
                    "the place of `{of}` is relative to entry {relative_to} of `include`, and it is entry {index} itself: entries before \
                     it are allowed, from 0"
                ));
            }
        }
        Ok(wanted)
    }

    /// Whether objects are counted, so that they must be surer.
    pub(super) fn is_counting(&self) -> bool {
        self.tag == COUNTING
    }

    /// The classes that matter, each once, in the order of the metadata.
    pub(super) fn classes(&self) -> Vec<&str> {
        let included = self.include.iter().map(|object| object.class.as_str());
        let excluded = self.exclude.iter().map(|object| object.class.as_str());
        let mut classes = Vec::new();
        for class in included.chain(excluded) {
            if !classes.contains(&class) {
                classes.push(class);
            }
        }
        classes
    }

    /// Whether the colour of objects of `class` matters.
    pub(super) fn needs_color(&self, class: &str) -> bool {
        let mut objects = self.include.iter();
        objects.any(|object| object.class == class && object.color.is_some())
    }
}
