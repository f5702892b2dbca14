//! The recogniser: from lines of text to classes along each.
//!
//! Source of sizes and normalisation: PaddleOCR 2.9, `tools/infer/predict_rec.py`, `resize_norm_img` with
//! `rec_image_shape = "3, 48, 320"`; of the decoding, `ppocr/postprocess/rec_postprocess.py`, `CTCLabelDecode`. There a line is padded
//! to the longest of its batch; here to its own length, at least the 320 or fewer of the settings, so that what is read does not depend on a line's neighbours.

use std::collections::BTreeMap;
use std::sync::Arc;

use flow_registry::Refusal;
use rten::ThreadPool;

use super::alphabet::Alphabet;
use super::network::Network;
use super::pixels::Pixels;
use crate::ctc::greedy;
use crate::reader::ReadLine;

const HEIGHT: usize = 48;

/// A line to recognise.
pub(super) struct LineOfText<'a> {
    pub pixels: Pixels,
    /// As in [`ReadRequest`](crate::ReadRequest).
    pub letters: &'a [char],
}

/// A recognition network with its characters.
#[derive(Debug)]
pub(super) struct Recogniser {
    network: Network,
    alphabet: Alphabet,
    batch: usize,
    min_width: usize,
}

impl Recogniser {
    /// The recogniser of a network, and of characters if they are not in its metadata; reads an empty line to see that they fit.
    ///
    /// # Errors
    /// If the network is no recogniser, or its characters are missing or others.
    pub fn new(
        network: Network,
        dictionary: Option<&str>,
        (batch, min_width): (usize, usize),
        thread: &Arc<ThreadPool>,
    ) -> Result<Self, Refusal> {
        let blank = vec![0.0; 3 * HEIGHT * min_width];
        let empty = network.run::<3>([1, 3, HEIGHT, min_width], blank, thread);
        let ([lines, _, classes], probabilities) =
            empty.map_err(|problem| format!("it is no recogniser: {problem}"))?;
        let sum: f32 = probabilities.iter().take(classes).sum();
        if lines != 1 || !(0.99..1.01).contains(&sum) {
            return Err(Refusal::because(format!(
                "it is no recogniser: the probabilities of the first step sum to {sum}, not to 1"
            )));
        }
        let characters = dictionary.or_else(|| network.metadata("character"));
        let characters = characters.ok_or_else(|| {
            Refusal::new(
                "its metadata has no `character`, the characters that it reads",
                "name a file with one a line as `dictionary`",
            )
        })?;
        let alphabet = Alphabet::new(characters, classes)?;
        Ok(Self {
            network,
            alphabet,
            batch,
            min_width,
        })
    }

    pub fn alphabet(&self) -> &Alphabet {
        &self.alphabet
    }

    /// What the lines say, in their order. Lines of equal lengths are read together.
    ///
    /// # Errors
    /// The position of a line at which the network fails, and how.
    pub fn read(
        &self,
        lines: &[LineOfText<'_>],
        thread: &Arc<ThreadPool>,
    ) -> Result<Vec<ReadLine>, (usize, String)> {
        let mut of_width: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, line) in lines.iter().enumerate() {
            of_width
                .entry(self.padded_width(&line.pixels))
                .or_default()
                .push(index);
        }
        let mut read: Vec<Option<ReadLine>> = lines.iter().map(|_| None).collect();
        for (width, indices) in of_width {
            for batch in indices.chunks(self.batch) {
                let mut values = vec![0.0; batch.len() * 3 * HEIGHT * width];
                for (index, values) in batch.iter().zip(values.chunks_exact_mut(3 * HEIGHT * width)) {
                    fill(&lines[*index].pixels, width, values);
                }
                let failed = |problem| (batch[0], problem);
                let shape = [batch.len(), 3, HEIGHT, width];
                let ([_, steps, classes], probabilities) =
                    self.network.run::<3>(shape, values, thread).map_err(failed)?;
                if classes != self.alphabet.classes() || probabilities.len() != batch.len() * steps * classes
                {
                    return Err(failed(format!(
                        "the recogniser has {classes} classes of a sudden"
                    )));
                }
                for (place, index) in batch.iter().enumerate() {
                    let own = &probabilities[place * steps * classes..(place + 1) * steps * classes];
                    read[*index] = Some(self.decoded(own, lines[*index].letters));
                }
            }
        }
        Ok(read.into_iter().flatten().collect())
    }

    /// Columns that a line has for the network.
    fn padded_width(&self, line: &Pixels) -> usize {
        (HEIGHT * line.width / line.height).max(self.min_width)
    }

    fn decoded(&self, probabilities: &[f32], letters: &[char]) -> ReadLine {
        let (classes, confidence) = greedy(probabilities, self.alphabet.classes());
        let probabilities = if letters.is_empty() {
            Vec::new()
        } else {
            self.alphabet.of_letters(probabilities, letters)
        };
        ReadLine {
            text: self.alphabet.text(&classes),
            confidence,
            probabilities,
        }
    }
}

/// Writes a line into `[3, HEIGHT, width]`, the values of which are 0: bytes become -1 to 1, and the rest stays.
fn fill(line: &Pixels, width: usize, values: &mut [f32]) {
    let own = (HEIGHT * line.width).div_ceil(line.height).clamp(1, width);
    line.resized(HEIGHT, own)
        .normalised_into([0.5; 3], [0.5; 3], width, values);
}
