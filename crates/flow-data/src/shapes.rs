//! Procedural scenes: "three red circles", "one blue square on the left".
//!
//! A scene is rendered when it is asked for, from `(seed, index)` alone, so the data set takes no space and can be
//! of any length.

mod prompts;
pub(crate) mod render;

use crate::dataset::{
    CaptionedImages, Dataset, Example, TokenizedPrompts, caption_noise, check_images, check_index,
    check_setting, foreign_prompt,
};
use crate::error::{DataError, PromptError};
use crate::image::ImageShape;
use crate::prompt::{Colour, Position, Prompt, PromptSpec, Shape};
use crate::registry::{DatasetFactory, DatasetRegistry};
use crate::vocabulary::Vocabulary;
use flow_config::{DataFacts, ImageFacts, PromptFacts};
use flow_registry::NameTaken;
use flow_rng::{Draws, Purpose, Stream};
use prompts::{PROMPT_LENGTH, SceneSpec};
use render::Scene;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use prompts::HELD_OUT_COLOUR;

/// Settings of [`Shapes`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShapesSettings {
    /// Height and width in pixels.
    #[schemars(range(min = 16, max = 1024))]
    pub image_size: usize,
    /// Number of training images.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub images: u64,
    /// Seed of the training images.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// Whether pretraining sees the held-out combinations too. They are held out from reinforcement learning anyway.
    pub pretrain_on_held_out: bool,
}

impl Default for ShapesSettings {
    fn default() -> Self {
        Self {
            image_size: 24,
            images: 20_000,
            seed: 0,
            pretrain_on_held_out: true,
        }
    }
}

/// The shapes data set; see the module's description.
#[derive(Debug, Clone)]
pub struct Shapes {
    settings: ShapesSettings,
    vocabulary: Vocabulary,
    prompts: Vec<Prompt>,
}

impl Shapes {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &ShapesSettings| DataFacts {
            images: Some(ImageFacts {
                size: settings.image_size,
                channels: 3,
            }),
            prompts: Some(PromptFacts {
                vocabulary: prompts::vocabulary().len(),
                length: PROMPT_LENGTH,
            }),
        };
        registry.register(DatasetFactory::new::<ShapesSettings>(
            "shapes",
            "Procedural scenes such as \"three red circles\", three channels; a prompt is a sentence.",
            facts,
            |settings| Ok(Arc::new(Self::new(settings)?)),
        ))
    }

    /// The data set with these settings.
    ///
    /// # Errors
    /// [`DataError::Setting`] for a size outside 16 to 1024 or a length of 0.
    pub fn new(settings: ShapesSettings) -> Result<Self, DataError> {
        let size = settings.image_size;
        let allowed = "images have 16 to 1024 pixels a side (below 16 the shapes cannot be told apart)";
        check_setting((16..=1024).contains(&size), "image_size", size, allowed)?;
        check_images(settings.images)?;
        let vocabulary = prompts::vocabulary();
        let prompts = prompts::all(&vocabulary);
        Ok(Self {
            settings,
            vocabulary,
            prompts,
        })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &ShapesSettings {
        &self.settings
    }

    /// A random scene that shows exactly what `prompt` asks for.
    ///
    /// # Errors
    /// [`DataError::ForeignPrompt`] for a prompt of another data set.
    pub fn scene_for(&self, prompt: &Prompt, seed: u64, index: u64) -> Result<Scene, DataError> {
        let PromptSpec::Shapes {
            count,
            colour,
            shape,
            position,
        } = self.own(prompt)?.spec
        else {
            return Err(foreign_prompt(self.name(), prompt));
        };
        let mut stream = Stream::new(seed, Purpose::Rendering).at(index, 0);
        Ok(Scene::place(
            self.settings.image_size,
            count,
            colour,
            shape,
            position,
            &mut stream,
        ))
    }

    /// The prompt as this data set has it.
    fn own(&self, prompt: &Prompt) -> Result<&Prompt, DataError> {
        match self.prompts.get(prompt.id as usize) {
            Some(own) if own.spec == prompt.spec => Ok(own),
            _ => Err(foreign_prompt(self.name(), prompt)),
        }
    }

    /// Counts, colours and shapes are equally frequent; half of the single objects have a position.
    fn draw_spec(&self, stream: &mut Draws) -> SceneSpec {
        loop {
            let count = 1 + stream.below(3) as u8;
            let colour = Colour::ALL[stream.below(Colour::ALL.len() as u64) as usize];
            let shape = Shape::ALL[stream.below(Shape::ALL.len() as u64) as usize];
            let place = stream.below(2 * Position::ALL.len() as u64) as usize;
            let position = if count == 1 {
                Position::ALL.get(place).copied()
            } else {
                None
            };
            if self.settings.pretrain_on_held_out || !prompts::is_held_out(count, colour, shape) {
                return SceneSpec {
                    count,
                    colour,
                    shape,
                    position,
                };
            }
        }
    }
}

impl Dataset for Shapes {
    fn name(&self) -> &str {
        "shapes"
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        match prompt.spec {
            PromptSpec::Shapes {
                count, colour, shape, ..
            } => prompts::is_held_out(count, colour, shape),
            PromptSpec::Digit { .. } | PromptSpec::Text => false,
        }
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        prompts::parse(text).map(|spec| self.prompts[spec.prompt_id() as usize].clone())
    }

    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        Some(self)
    }

    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        Some(self)
    }
}

impl TokenizedPrompts for Shapes {
    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn prompt_length(&self) -> usize {
        PROMPT_LENGTH
    }
}

impl CaptionedImages for Shapes {
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            channels: 3,
            height: self.settings.image_size,
            width: self.settings.image_size,
        }
    }

    fn len(&self) -> u64 {
        self.settings.images
    }

    fn example(&self, index: u64) -> Result<Example, DataError> {
        check_index("shapes", self.len(), index)?;
        let mut stream = Stream::new(self.settings.seed, Purpose::Scene).at(index, 0);
        let spec = self.draw_spec(&mut stream);
        let SceneSpec {
            count,
            colour,
            shape,
            position,
        } = spec;
        let scene = Scene::place(
            self.settings.image_size,
            count,
            colour,
            shape,
            position,
            &mut stream,
        );
        Ok(Example {
            image: scene.render(),
            prompt: self.prompts[spec.prompt_id() as usize].clone(),
        })
    }

    /// The part that is wrong in a noisy caption is the count, the colour or the shape, equally often; a position is
    /// dropped if the wrong count is not one.
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        let noise = caption_noise(fraction, seed, index)?;
        let PromptSpec::Shapes {
            count,
            colour,
            shape,
            position,
        } = self.own(prompt)?.spec
        else {
            return Err(foreign_prompt(self.name(), prompt));
        };
        let Some(mut stream) = noise else {
            return Ok(prompt.clone());
        };
        let mut spec = SceneSpec {
            count,
            colour,
            shape,
            position,
        };
        // One of the other values: a step of one to n - 1 around the circle of n.
        let other = |value: usize, n: usize, stream: &mut Draws| {
            (value + 1 + stream.below(n as u64 - 1) as usize) % n
        };
        match stream.below(3) {
            0 => spec.count = 1 + other(usize::from(count) - 1, 3, &mut stream) as u8,
            1 => spec.colour = Colour::ALL[other(colour as usize, Colour::ALL.len(), &mut stream)],
            _ => spec.shape = Shape::ALL[other(shape as usize, Shape::ALL.len(), &mut stream)],
        }
        if spec.count != 1 {
            spec.position = None;
        }
        Ok(self.prompts[spec.prompt_id() as usize].clone())
    }
}
