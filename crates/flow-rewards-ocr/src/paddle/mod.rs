//! PP-OCR: a detector that finds lines of text, and a recogniser that reads them.

mod alphabet;
mod boxes;
mod detector;
mod files;
mod min_area_rectangle;
mod network;
mod pixels;
mod recogniser;

use flow_data::ImageShape;
use flow_registry::Refusal;
use flow_rewards::RewardError;

use crate::reader::{ReadError, ReadLine, ReadRequest, Reader};
use crate::settings::OcrSettings;
use detector::Detector;
use files::Files;
use network::{Network, Threads};
use pixels::Pixels;
use recogniser::{LineOfText, Recogniser};

/// Pixels on a side, at most: of what is larger, the map of text alone would take gigabytes.
const MAX_SIDE: usize = 16_384;

/// Reads images by PP-OCR's ONNX files.
///
/// Each call runs on one thread, and calls from several threads run side by side.
#[derive(Debug)]
pub struct PaddleReader {
    recogniser: Recogniser,
    detector: Option<Detector>,
    threads: Threads,
}

impl PaddleReader {
    /// The reader of the settings' files. Each network is run once to see that it is what it should be.
    ///
    /// # Errors
    /// [`RewardError::File`] for a file that is missing or is not what it should be, [`RewardError::Params`] for a parameter.
    pub fn open(settings: &OcrSettings) -> Result<Self, RewardError> {
        let files = Files::read(settings)?;
        let threads = Threads::default();
        let (mut recogniser, mut detector) = (files.recogniser, files.detector);
        let networks: Result<_, RewardError> = threads.lend(|thread| {
            let bytes = std::mem::take(&mut recogniser.bytes);
            let reads = Network::new(bytes)
                .map_err(Refusal::from)
                .and_then(|network| {
                    Recogniser::new(
                        network,
                        files.dictionary.as_deref(),
                        (settings.batch, settings.min_width),
                        thread,
                    )
                })
                .map_err(|problem| recogniser.refused(problem))?;
            let finds = detector.as_mut().map(|content| {
                let bytes = std::mem::take(&mut content.bytes);
                Network::new(bytes)
                    .and_then(|network| Detector::new(network, thread))
                    .map_err(|problem| content.refused(problem.into()))
            });
            Ok((reads, finds.transpose()?))
        });
        let (recogniser, detector) = networks?;
        Ok(Self {
            recogniser,
            detector,
            threads,
        })
    }
}

/// An image as the networks take it.
fn pixels(request: &ReadRequest<'_>) -> Result<Pixels, String> {
    let shape = request.image.shape();
    let ImageShape {
        channels,
        height,
        width,
    } = shape;
    if shape.is_empty() {
        return Err(format!("an image of {shape} has no pixels"));
    }
    if !matches!(channels, 1 | 3) || height.max(width) > MAX_SIDE {
        return Err(format!(
            "an image of {shape} cannot be read: images are grey or RGB, and at most {MAX_SIDE} pixels on a side"
        ));
    }
    Ok(Pixels::of(request.image))
}

impl Reader for PaddleReader {
    fn read(&self, requests: &[ReadRequest<'_>]) -> Result<Vec<Vec<ReadLine>>, ReadError> {
        self.threads.lend(|thread| {
            let mut lines = Vec::new();
            let mut owners = Vec::new();
            for (index, request) in requests.iter().enumerate() {
                let failed = |problem| ReadError { index, problem };
                let pixels = pixels(request).map_err(failed)?;
                let found = match &self.detector {
                    None => vec![pixels],
                    Some(detector) => {
                        let boxes = detector.boxes(&pixels, thread).map_err(failed)?;
                        boxes.iter().map(|corners| pixels.cut_out(corners)).collect()
                    }
                };
                owners.extend(found.iter().map(|_| index));
                lines.extend(found.into_iter().map(|pixels| LineOfText {
                    pixels,
                    letters: request.letters,
                }));
            }
            let read = self.recogniser.read(&lines, thread);
            let read = read.map_err(|(line, problem)| ReadError {
                index: owners[line],
                problem,
            })?;
            let mut of_images: Vec<Vec<ReadLine>> = requests.iter().map(|_| Vec::new()).collect();
            for (owner, line) in owners.into_iter().zip(read) {
                of_images[owner].push(line);
            }
            Ok(of_images)
        })
    }

    fn unknown_letters(&self, letters: &[char]) -> Vec<char> {
        self.recogniser.alphabet().unknown(letters)
    }
}
