//! `shapes-rules`: whether a scene shows the count, colour, shape and position that its prompt asks for.
//!
//! The image is segmented into objects ([`find_objects`]), each object is named, and the parts of the prompt are
//! compared with what was found, in the manner of GenEval (Ghosh et al. 2023, arXiv:2310.11513) without a detector.

mod objects;

use std::sync::Arc;

use flow_data::{Position, Prompt, PromptSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use flow_registry::NameTaken;

use crate::error::RewardError;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};
use crate::rules::of_data;

pub use objects::{FoundObject, find_objects};

const NAME: &str = "shapes-rules";
/// How far from the middle an object must be to be on a side, as a share of the image's side.
const LEAST_OFFSET: f32 = 0.08;

/// How the rules of a scene add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulesMode {
    /// The mean of the rules that hold: smooth.
    #[default]
    Mean,
    /// 1 if every rule holds, else 0: GenEval's.
    All,
}

/// Settings of [`ShapesRules`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShapesRulesSettings {
    /// How the rules add up.
    pub mode: RulesMode,
}

/// How right each part of a prompt is, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SceneParts {
    /// 1 if there are as many objects as asked for and each has one of the data set's colours or shapes, else 0: a
    /// blob without a name is no object, and still one thing too many.
    pub count: f32,
    /// The share of the objects that have the colour.
    pub colour: f32,
    /// The share of the objects that have the shape.
    pub shape: f32,
    /// If a position is asked for: 1 if the largest object is there, else 0.
    pub position: Option<f32>,
}

impl SceneParts {
    /// The score.
    pub fn score(&self, mode: RulesMode) -> f32 {
        let parts = [
            Some(self.count),
            Some(self.colour),
            Some(self.shape),
            self.position,
        ];
        let asked = parts.iter().flatten();
        match mode {
            RulesMode::Mean => asked.clone().sum::<f32>() / asked.count() as f32,
            RulesMode::All => f32::from(u8::from(asked.clone().all(|&part| part == 1.0))),
        }
    }
}

/// Compares the objects of an image with a prompt; `None` if the prompt asks for no scene.
///
/// `objects` come from [`find_objects`], the largest first; without any, every part is 0.
pub fn compare(prompt: &Prompt, objects: &[FoundObject]) -> Option<SceneParts> {
    let PromptSpec::Shapes {
        count,
        colour,
        shape,
        position,
    } = prompt.spec
    else {
        return None;
    };
    let share = |right: usize| {
        if objects.is_empty() {
            0.0
        } else {
            right as f32 / objects.len() as f32
        }
    };
    let as_many = objects.len() == usize::from(count);
    let all_named = objects
        .iter()
        .all(|object| object.colour.is_some() || object.shape.is_some());
    Some(SceneParts {
        count: if as_many && all_named { 1.0 } else { 0.0 },
        colour: share(
            objects
                .iter()
                .filter(|object| object.colour == Some(colour))
                .count(),
        ),
        shape: share(
            objects
                .iter()
                .filter(|object| object.shape == Some(shape))
                .count(),
        ),
        position: position.map(|position| match objects.first() {
            Some(object) if is_at(object, position) => 1.0,
            _ => 0.0,
        }),
    })
}

/// Whether an object is on a side of the middle, and more so than above or below it (or the other way round).
fn is_at(object: &FoundObject, position: Position) -> bool {
    let (dx, dy) = (object.x - 0.5, object.y - 0.5);
    let (along, across) = match position {
        Position::Left => (-dx, dy),
        Position::Right => (dx, dy),
        Position::Top => (-dy, dx),
        Position::Bottom => (dy, dx),
    };
    along >= LEAST_OFFSET && along > across.abs()
}

/// The rule checker; see the module's description.
#[derive(Debug, Clone, Default)]
pub struct ShapesRules {
    settings: ShapesRulesSettings,
}

impl ShapesRules {
    /// The reward with these settings.
    pub fn new(settings: ShapesRulesSettings) -> Self {
        Self { settings }
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<ShapesRulesSettings>(
            NAME,
            "Whether the scene is the prompted one: count, colour, shape, position, found by rules.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings))),
        );
        registry.register(
            reward.with_rules(|_: &ShapesRulesSettings, rules, path| of_data("shapes", NAME, rules, path)),
        )
    }
}

impl Reward for ShapesRules {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |(index, sample): (usize, &RewardSample<'_>)| {
            check_finite(index, sample)?;
            let objects =
                find_objects(sample.image).map_err(|problem| RewardError::Sample { index, problem })?;
            let parts = compare(sample.prompt, &objects).ok_or_else(|| RewardError::Sample {
                index,
                problem: format!(
                    "the prompt \"{}\" asks for no scene; `{NAME}` goes with the data set `shapes` (for digits there \
                     is `digit-classifier`)",
                    sample.prompt.text
                ),
            })?;
            Ok(parts.score(self.settings.mode))
        };
        samples.iter().enumerate().map(score).collect()
    }
}
