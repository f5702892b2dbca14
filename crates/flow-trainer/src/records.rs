//! Records of a data set that a run learns from instead of rollouts: images as they are, or pictures that are encoded to latents before
//! the run begins.

use crate::algorithm::{Algorithm, RecordKind};
use crate::error::TrainError;
use crate::pretrain::{Examples, LatentExamples, PixelExamples};
use crate::setup::{Environment, LatentSource};
use flow_config::Config;
use flow_data::{CaptionedImages, CaptionedPictures, Dataset, Prompt};
use flow_registry::Refusal;
use flow_report::ContentHash;
use std::sync::Arc;

impl RecordKind {
    /// The pictures of any size of which records are made, in the order of their rows.
    pub(crate) fn pictures(self, dataset: &dyn Dataset) -> Option<&dyn CaptionedPictures> {
        match self {
            Self::Examples => dataset.captioned_pictures(),
            Self::Preferences => dataset.preferences().map(|pairs| pairs.pictures),
        }
    }

    /// The images of one size of which records are made, in the order of their rows.
    pub(crate) fn images(self, dataset: &dyn Dataset) -> Option<&dyn CaptionedImages> {
        match self {
            Self::Examples => dataset.captioned_images(),
            Self::Preferences => dataset.preferences().and_then(|pairs| pairs.images),
        }
    }

    /// That `dataset` has no such records, and what to do.
    fn missing(self, algorithm: &str, dataset: &dyn Dataset) -> TrainError {
        let name = dataset.name();
        let (key, refusal) = match self {
            Self::Examples if dataset.preferences().is_some() => (
                "data.kind",
                Refusal::new(
                    format!(
                        "`algorithm.kind = \"{algorithm}\"` learns from images with captions, and the data set `{name}` has pairs of images"
                    ),
                    "to learn from the better ones, read its file with `data.kind = \"images\"`, `data.image_key = \"chosen\"` and \
                     `data.caption_key = \"prompt\"`",
                ),
            ),
            Self::Examples => (
                "data.kind",
                Refusal::new(
                    format!(
                        "`algorithm.kind = \"{algorithm}\"` learns from images with captions, and the data set `{name}` has none"
                    ),
                    "set `data.kind = \"images\"` and `data.path`",
                ),
            ),
            Self::Preferences if dataset.preferences().is_some() => (
                "data",
                Refusal::new(
                    "a model of pixels takes images of one size",
                    format!(
                        "set `data.width` and `data.height` of the data set `{name}`, or `model.path` to a diffusers folder"
                    ),
                ),
            ),
            Self::Preferences => (
                "data.kind",
                Refusal::new(
                    format!(
                        "`algorithm.kind = \"{algorithm}\"` learns from pairs of images, and the data set `{name}` has none"
                    ),
                    "set `data.kind = \"preferences\"`, and `data.path` to a `.jsonl` with `prompt`, `chosen` and `rejected` in each line",
                ),
            ),
        };
        TrainError::setting(refusal).about(key)
    }
}

/// The records of a run.
pub struct Records {
    kind: RecordKind,
    dataset: Arc<dyn Dataset>,
    /// Rows of all records.
    rows: u64,
    source: Source,
    /// What the rows of the checkpoint were that the run goes on from.
    expected: Option<ContentHash>,
}

/// Where rows come from.
enum Source {
    /// Images as they are, for a model of pixels.
    Pixels,
    /// Pictures, for a model of latents.
    Pictures(Box<LatentSource>),
    /// The same, encoded.
    Latents(LatentExamples),
}

impl Records {
    /// Those that `algorithm` learns from, if it does not learn from rollouts. No picture is encoded yet.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if `dataset` has none, a group is not a record, or pictures have sizes of their own; as far as it shows
    /// without looking at more than the headers of pictures.
    pub(crate) fn of(
        config: &Config,
        environment: &Environment<'_>,
        algorithm: &impl Algorithm,
        dataset: &Arc<dyn Dataset>,
    ) -> Result<Option<Self>, TrainError> {
        let Some(kind) = algorithm.records() else {
            return Ok(None);
        };
        let (sampling, rows) = (&config.sampling, kind.rows());
        if sampling.group_size != rows || !sampling.micro_batch.is_multiple_of(rows) {
            return Err(TrainError::setting(format!(
                "a record from which `algorithm.kind = \"{}\"` learns has {rows} image(s)",
                algorithm.name()
            ))
            .with_help(format!(
                "set `sampling.group_size = {rows}` (it is {}), and `sampling.micro_batch` to a multiple of that (it is {})",
                sampling.group_size, sampling.micro_batch
            ))
            .about("sampling.group_size"));
        }
        let missing = || kind.missing(algorithm.name(), &**dataset);
        let (source, rows) = match config.model.path {
            None => {
                let images = kind.images(&**dataset).ok_or_else(missing)?;
                (Source::Pixels, images.len())
            }
            Some(_) => {
                let pictures = kind.pictures(&**dataset).ok_or_else(missing)?;
                if pictures.buckets().is_some() {
                    return Err(TrainError::setting(
                        "`data.buckets` is for `flow-train pretrain`: `train` fits all pictures to `model.width` by `model.height`",
                    )
                    .with_help("remove it")
                    .about("data.buckets"));
                }
                let source = LatentSource::of(config, environment, dataset, kind)?;
                (Source::Pictures(Box::new(source)), pictures.len())
            }
        };
        if rows == 0 {
            return Err(missing());
        }
        Ok(Some(Self {
            kind,
            dataset: dataset.clone(),
            rows,
            source,
            expected: None,
        }))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.rows as usize / self.kind.rows()
    }

    /// What each is.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Encodes the pictures that are not encoded yet, and says what a person may want to know.
    ///
    /// # Errors
    /// If a picture cannot be read, or the rows are others than those of [`expect`](Self::expect).
    pub(crate) fn prepare(&mut self) -> Result<Vec<String>, TrainError> {
        let Source::Pictures(source) = &self.source else {
            return Ok(Vec::new());
        };
        let (examples, notices) = source.encode(&mut |_| {})?;
        self.source = Source::Latents(examples);
        match self.expected.zip(self.contents()) {
            Some((then, now)) if then != now => Err(TrainError::setting(
                "the pictures or captions are others, or in another order, than when the checkpoint was saved",
            )
            .with_help("bring the data back, or start a new run from the exported weights")),
            _ => Ok(notices),
        }
    }

    /// That the rows are to be those of a checkpoint, if it says what they were.
    pub(crate) fn expect(&mut self, contents: Option<ContentHash>) {
        self.expected = contents;
    }

    /// A hash of what the rows are, where files may change between two starts.
    pub(crate) fn contents(&self) -> Option<ContentHash> {
        match &self.source {
            Source::Latents(examples) => Some(ContentHash::of(examples.contents()?.as_bytes())),
            Source::Pixels | Source::Pictures(_) => None,
        }
    }

    /// The captions that text encoders are to read: of pictures in latents all, of images none.
    ///
    /// # Errors
    /// None in practice: all rows are there.
    pub(crate) fn captions(&self) -> Result<Vec<Prompt>, TrainError> {
        match (&self.source, self.kind.pictures(&*self.dataset)) {
            (Source::Pixels, _) | (_, None) => Ok(Vec::new()),
            (_, Some(pictures)) => {
                let captions = (0..self.rows).map(|row| Ok(pictures.caption(row)?.clone()));
                captions.collect()
            }
        }
    }

    /// Row `row` of all records: its values in the order of the model, and its caption. A record has its rows below one another.
    ///
    /// # Errors
    /// If there is no such row, it cannot be read, or it is not encoded yet.
    pub(crate) fn row(&self, row: u64) -> Result<(Vec<f32>, Prompt), TrainError> {
        let unprepared =
            || TrainError::setting("the pictures are not encoded").with_help("`Trainer::set_up` does that");
        match &self.source {
            Source::Pixels => {
                let images = self.kind.images(&*self.dataset).ok_or_else(unprepared)?;
                PixelExamples(images).example(row)
            }
            Source::Pictures(_) => Err(unprepared()),
            Source::Latents(examples) => examples.example(row),
        }
    }
}
