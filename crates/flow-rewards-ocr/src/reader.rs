//! What reads text in images: the interface between the reward's arithmetic and a network.

use flow_data::Image;

/// An image to read.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest<'a> {
    /// The image, grey or RGB, in [-1, 1].
    pub image: &'a Image,
    /// Letters in lower case whose probabilities are wanted; none where only the text is.
    pub letters: &'a [char],
}

/// A line of text in an image.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadLine {
    /// What it says.
    pub text: String,
    /// How surely, 0 to 1.
    pub confidence: f32,
    /// Of each step of the recogniser along the line, from left to right: the probability of no letter (blank or a space), then
    /// those of the letters asked for, upper and lower case together. Length `steps * (1 + letters)`; empty where none was asked for.
    pub probabilities: Vec<f32>,
}

/// An image that a reader cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// Position among the requests.
    pub index: usize,
    /// What is wrong, as a sentence part.
    pub problem: String,
}

/// Reads text in images.
///
/// Implementations are called from several threads at once. What they read in an image depends on that image alone, neither on the
/// others of the call nor on the number of threads.
pub trait Reader: Send + Sync {
    /// The lines of each image, in reading order.
    ///
    /// # Errors
    /// [`ReadError`] with the position of the first image that cannot be read.
    fn read(&self, requests: &[ReadRequest<'_>]) -> Result<Vec<Vec<ReadLine>>, ReadError>;

    /// Those of the letters, in lower case, that the reader never reads.
    fn unknown_letters(&self, letters: &[char]) -> Vec<char>;
}
