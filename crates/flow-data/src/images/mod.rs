//! `kind = "images"`: pictures of files with their captions.
//!
//! A model of pixels takes them in [-1, 1] ([`CaptionedImages`]); for one of latents the trainer encodes them
//! ([`CaptionedPictures`]).

mod buckets;
mod list;
mod pairs;
mod preferences;
mod settings;
mod words;

pub use buckets::{BucketSettings, BucketSize, Buckets};
pub use preferences::{Preferences, PreferencesSettings};
pub use settings::ImagesSettings;

use crate::dataset::{
    CaptionedImages, CaptionedPictures, Dataset, Example, FREE_PROMPT_ID, TokenizedPrompts, caption_noise,
    check_index,
};
use crate::error::{DataError, PromptError};
use crate::held_out::HeldOut;
use crate::image::{Image, ImageShape};
use crate::picture::{self, Picture};
use crate::prompt::Prompt;
use crate::registry::{DatasetFactory, DatasetRegistry};
use crate::vocabulary::Vocabulary;
use flow_registry::NameTaken;
use list::{Captioned, PictureList};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use words::Words;

/// The name by which a config asks for it.
const NAME: &str = "images";

/// Bytes of fitted pictures that stay in memory, so that small ones are read once.
const KEPT_BYTES: usize = 1 << 30;

/// Pictures with captions; see the module's description.
#[derive(Debug)]
pub struct Images {
    prompts: Vec<Prompt>,
    held_out: Vec<bool>,
    ids: HashMap<String, u32>,
    pictures: Vec<TrainingPicture>,
    /// Ids of the captions of training pictures.
    trained: Vec<u32>,
    words: Option<Words>,
    /// Of a model of pixels.
    shape: Option<ImageShape>,
    kept_bytes: AtomicUsize,
    cache: Option<PathBuf>,
    buckets: Option<BucketSettings>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct TrainingPicture {
    path: PathBuf,
    place: String,
    caption: u32,
    /// Fitted, in RGB.
    fitted: OnceLock<Picture>,
}

impl Images {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let factory = DatasetFactory::new::<ImagesSettings>(
            NAME,
            "Pictures (PNG, JPEG, WebP) with captions, of a folder or a list: to pretrain on, in pixels or in the latents of `model.path`.",
            ImagesSettings::facts,
            |settings| Ok(Arc::new(Self::read(&settings)?)),
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_paths(&["path", "test_path", "cache"]),
        )
    }

    /// Reads the lists and looks at the beginning of each picture.
    ///
    /// # Errors
    /// [`DataError::Pictures`] with every line, caption and picture that cannot be read.
    pub fn read(settings: &ImagesSettings) -> Result<Self, DataError> {
        let train = PictureList::read(&settings.path, settings)?;
        let mut notes = train.notes.clone();
        let several = train.with_several_captions();
        if several > 0 {
            notes.push(format!(
                "`{}`: {several} picture(s) are there more than once, with different captions; all count",
                settings.path.display()
            ));
        }
        let (train, tests) = match &settings.test_path {
            Some(path) => {
                let test = PictureList::read(path, settings)?;
                notes.extend(test.notes.clone());
                let shared = train.captions.shared_with(&test.captions).len();
                if shared > 0 {
                    notes.push(format!(
                        "{shared} of {} captions of `{}` are trained on, too: their scores say nothing of captions that the model has \
                         not seen",
                        test.captions.len(),
                        path.display()
                    ));
                }
                (train.into_captioned(), test.into_captioned())
            }
            None => held_out(train, settings)?,
        };
        Self::of(train, tests, settings, notes)
    }

    fn of(
        train: Vec<Captioned>,
        tests: Vec<Captioned>,
        settings: &ImagesSettings,
        notes: Vec<String>,
    ) -> Result<Self, DataError> {
        let captions = || train.iter().chain(&tests).map(|one| one.entry.text.as_str());
        let words = settings.words.then(|| Words::of(captions()));
        let (mut prompts, mut held_out): (Vec<Prompt>, Vec<bool>) = (Vec::new(), Vec::new());
        let mut ids: HashMap<String, u32> = HashMap::new();
        let mut add = |one: &Captioned, is_held_out: bool| -> u32 {
            let text = &one.entry.text;
            if let Some(id) = ids.get(text) {
                return *id;
            }
            let id = prompts.len() as u32;
            let tokens = words.as_ref().and_then(|words| words.encode(text).ok());
            prompts.push(Prompt {
                metadata: one.entry.metadata.clone(),
                tokens: tokens.unwrap_or_default(),
                ..Prompt::free(id, text.clone())
            });
            held_out.push(is_held_out);
            ids.insert(text.clone(), id);
            id
        };
        let pictures: Vec<TrainingPicture> = train
            .iter()
            .map(|one| TrainingPicture {
                path: one.picture.clone(),
                place: one.place.clone(),
                caption: add(one, false),
                fitted: OnceLock::new(),
            })
            .collect();
        for one in &tests {
            add(one, true);
        }
        let mut notes = notes;
        if !held_out.contains(&true) {
            notes.push(
                "no caption is held out, so evaluation measures captions that are trained on; `data.test_path`, `data.test_count` or \
                 `data.test_fraction` hold some out"
                    .into(),
            );
        }
        let mut trained: Vec<u32> = pictures.iter().map(|picture| picture.caption).collect();
        trained.sort_unstable();
        trained.dedup();
        Ok(Self {
            prompts,
            held_out,
            ids,
            pictures,
            trained,
            words,
            shape: settings
                .width
                .zip(settings.height)
                .map(|(width, height)| ImageShape {
                    channels: settings.channels(),
                    height,
                    width,
                }),
            kept_bytes: AtomicUsize::new(0),
            cache: settings.cache.clone(),
            buckets: settings.buckets.clone(),
            notes,
        })
    }

    fn picture(&self, index: u64) -> Result<&TrainingPicture, DataError> {
        check_index(NAME, self.pictures.len() as u64, index)?;
        Ok(&self.pictures[index as usize])
    }

    fn other_caption(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        let noise = caption_noise(fraction, seed, index)?;
        let own = self.trained.binary_search(&prompt.id);
        let others = self.trained.len() - usize::from(own.is_ok());
        let Some(mut stream) = noise.filter(|_| others > 0) else {
            return Ok(prompt.clone());
        };
        let mut other = stream.below(others as u64) as usize;
        // Past its own.
        if own.is_ok_and(|own| other >= own) {
            other += 1;
        }
        Ok(self.prompts[self.trained[other] as usize].clone())
    }
}

/// Parts off the captions that are held out.
fn held_out(
    list: PictureList,
    settings: &ImagesSettings,
) -> Result<(Vec<Captioned>, Vec<Captioned>), DataError> {
    let held_out = HeldOut {
        fraction: settings.test_fraction,
        count: settings.test_count,
        seed: settings.seed,
    };
    let Some((_, tests)) = held_out.split(&list.captions, "pictures")? else {
        return Ok((list.into_captioned(), Vec::new()));
    };
    let tests: HashSet<u32> = tests.entries().iter().map(|entry| entry.id).collect();
    Ok(list
        .into_captioned()
        .into_iter()
        .partition(|one| !tests.contains(&one.entry.id)))
}

impl Dataset for Images {
    fn name(&self) -> &str {
        NAME
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        self.held_out.get(prompt.id as usize) == Some(&true)
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        if let Some(id) = self.ids.get(text) {
            return Ok(self.prompts[*id as usize].clone());
        }
        let tokens = match &self.words {
            Some(words) => words.encode(text)?,
            None => Vec::new(),
        };
        Ok(Prompt {
            tokens,
            ..Prompt::free(FREE_PROMPT_ID, text)
        })
    }

    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        self.words.as_ref().map(|_| self as &dyn TokenizedPrompts)
    }

    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        self.shape.map(|_| self as &dyn CaptionedImages)
    }

    fn captioned_pictures(&self) -> Option<&dyn CaptionedPictures> {
        Some(self)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Where none is held out, all: there would be nothing to evaluate.
    fn held_out_prompts(&self) -> Vec<Prompt> {
        let of = |wanted: bool| {
            let all = self.prompts.iter().zip(&self.held_out);
            all.filter(|(_, held_out)| **held_out == wanted)
                .map(|(prompt, _)| prompt.clone())
                .collect::<Vec<Prompt>>()
        };
        match self.held_out.contains(&true) {
            true => of(true),
            false => of(false),
        }
    }
}

impl TokenizedPrompts for Images {
    fn vocabulary(&self) -> &Vocabulary {
        self.words
            .as_ref()
            .expect("asked for with words alone")
            .vocabulary()
    }

    fn prompt_length(&self) -> usize {
        self.words.as_ref().map_or(0, Words::length)
    }
}

impl CaptionedImages for Images {
    fn image_shape(&self) -> ImageShape {
        self.shape.expect("asked for with a size alone")
    }

    fn len(&self) -> u64 {
        self.pictures.len() as u64
    }

    fn example(&self, index: u64) -> Result<Example, DataError> {
        let picture = self.picture(index)?;
        let ImageShape {
            channels,
            height,
            width,
        } = self.image_shape();
        let in_channels = |fitted: &Picture| -> Image {
            match channels {
                1 => fitted.to_grey(),
                _ => fitted.to_image(),
            }
        };
        let image = match picture.fitted.get() {
            Some(fitted) => in_channels(fitted),
            None => {
                let fitted = Picture::read(&picture.path)
                    .map_err(|error| DataError::Pictures {
                        problem: format!("the picture {}: {error}", picture.place),
                    })?
                    .fitted(width, height);
                let image = in_channels(&fitted);
                let bytes = fitted.rgb8().len();
                if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BYTES {
                    // Another thread may have read it, too; both have read the same.
                    let _ = picture.fitted.set(fitted);
                }
                image
            }
        };
        Ok(Example {
            image,
            prompt: self.prompts[picture.caption as usize].clone(),
        })
    }

    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        self.other_caption(prompt, fraction, seed, index)
    }
}

impl CaptionedPictures for Images {
    fn len(&self) -> u64 {
        self.pictures.len() as u64
    }

    fn place(&self, index: u64) -> Result<String, DataError> {
        Ok(self.picture(index)?.place.clone())
    }

    fn bytes(&self, index: u64) -> Result<Vec<u8>, DataError> {
        let picture = self.picture(index)?;
        std::fs::read(&picture.path).map_err(|error| DataError::Pictures {
            problem: format!("the picture {}: it cannot be read: {error}", picture.place),
        })
    }

    fn caption(&self, index: u64) -> Result<&Prompt, DataError> {
        Ok(&self.prompts[self.picture(index)?.caption as usize])
    }

    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        self.other_caption(prompt, fraction, seed, index)
    }

    fn size(&self, index: u64) -> Result<(usize, usize), DataError> {
        let picture = self.picture(index)?;
        picture::size_of(&picture.path).map_err(|error| DataError::Pictures {
            problem: format!("the picture {}: {error}", picture.place),
        })
    }

    fn buckets(&self) -> Option<&BucketSettings> {
        self.buckets.as_ref()
    }

    fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }
}
