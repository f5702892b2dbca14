//! Sampled videos: as animated pictures, and as strips of frames for grids and the report.

mod animation;

pub use animation::Animation;

use std::path::Path;

use crate::atomic::atomic_write;
use crate::error::{ReportError, Result};
use crate::grid::{LARGEST_SIDE, Tile};

/// Frame rates that both formats can hold and viewers show; a GIF above 50 is played at 10 by browsers.
const FRAME_RATES_HZ: std::ops::RangeInclusive<f64> = 0.1..=50.0;

/// Frames in RGB with 8 bits, all of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    frames: u32,
    height: u32,
    width: u32,
    frame_rate_hz: f64,
    pixels_FHWC: Vec<u8>,
}

impl Video {
    /// A video of shape [frames, height, width, 3], with `frame_rate_hz` frames per second.
    ///
    /// # Errors
    /// [`ReportError::Video`] for no frame, an empty side or one above 32768 pixels, data of another length than the shape's, or a
    /// rate that is not 0.1 to 50 frames per second.
    pub fn new(
        frames: usize,
        height: usize,
        width: usize,
        pixels_FHWC: Vec<u8>,
        frame_rate_hz: f64,
    ) -> Result<Self> {
        let refuse = |problem: String| ReportError::Video {
            shape: format!("{frames}×{height}×{width}×3"),
            problem,
        };
        let side = |side: usize| {
            u32::try_from(side)
                .ok()
                .filter(|side| *side > 0 && u64::from(*side) <= LARGEST_SIDE)
        };
        let (Some(height_px), Some(width_px)) = (side(height), side(width)) else {
            return Err(refuse(format!("sides must be 1 to {LARGEST_SIDE}")));
        };
        let Some(frame_count) = u32::try_from(frames).ok().filter(|count| *count > 0) else {
            return Err(refuse("must have at least one frame".into()));
        };
        let expected = [height, width, 3]
            .iter()
            .try_fold(frames, |size, factor| size.checked_mul(*factor));
        if expected != Some(pixels_FHWC.len()) {
            let expected = expected.map_or("more than memory has".into(), |size| size.to_string());
            return Err(refuse(format!(
                "needs {expected} bytes, got {}",
                pixels_FHWC.len()
            )));
        }
        if !FRAME_RATES_HZ.contains(&frame_rate_hz) {
            return Err(refuse(format!(
                "cannot be shown at {frame_rate_hz} frames per second; {} to {} can be",
                FRAME_RATES_HZ.start(),
                FRAME_RATES_HZ.end()
            )));
        }
        Ok(Self {
            frames: frame_count,
            height: height_px,
            width: width_px,
            frame_rate_hz,
            pixels_FHWC,
        })
    }

    /// How many frames it has.
    pub fn frames(&self) -> usize {
        self.frames as usize
    }

    /// How long it plays, in seconds.
    pub fn duration_s(&self) -> f64 {
        f64::from(self.frames) / self.frame_rate_hz
    }

    /// The file's bytes in a format. The same video gives the same bytes.
    ///
    /// # Errors
    /// [`ReportError::Video`] if it cannot be encoded.
    pub fn encoded(&self, animation: Animation) -> Result<Vec<u8>> {
        animation.encode(self).map_err(|problem| ReportError::Video {
            shape: self.shape(),
            problem: format!("cannot be encoded: {problem}"),
        })
    }

    /// Writes it atomically in the format of the path's ending: `.png` or `.apng`, or `.gif`.
    ///
    /// # Errors
    /// [`ReportError::Video`] for another ending, before anything is written; as [`Video::encoded`] and [`atomic_write`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let Some(animation) = Animation::of_path(path) else {
            return Err(ReportError::Video {
                shape: self.shape(),
                problem: format!(
                    "cannot be written to `{}`: the name must end in `.png` or `.apng` (every colour), or in `.gif` (256 colours a \
                     frame)",
                    path.display()
                ),
            });
        };
        let bytes = self.encoded(animation)?;
        atomic_write(path, "video", |out| out.write_all(&bytes))
    }

    /// At most `count` frames, evenly spaced, the first and the last among them, each with its time as label: a row of an
    /// [`ImageGrid`](crate::ImageGrid), which shows a video where pictures do not move. One of `count` 1 is the first frame.
    ///
    /// # Errors
    /// [`ReportError::Video`] if `count` is 0.
    pub fn strip(&self, count: usize) -> Result<Vec<Tile>> {
        if count == 0 {
            return Err(ReportError::Video {
                shape: self.shape(),
                problem: "a strip needs at least one frame".into(),
            });
        }
        let last = self.frames() - 1;
        let shown = count.min(self.frames());
        (0..shown)
            .map(|index| {
                let frame = if shown == 1 {
                    0
                } else {
                    (index * last + (shown - 1) / 2) / (shown - 1)
                };
                let label = format!("{:.2} s", frame as f64 / self.frame_rate_hz);
                Ok(self.tile(frame)?.label(label))
            })
            .collect()
    }

    /// A frame as a tile, whose pixels are the frame's to the bit.
    fn tile(&self, frame: usize) -> Result<Tile> {
        let (height, width) = (self.height as usize, self.width as usize);
        let pixels_HWC = self.frame(frame);
        let plane = height * width;
        let value = |at: usize| f32::from(pixels_HWC[at % plane * 3 + at / plane]) / 127.5 - 1.0;
        Tile::new(3, height, width, (0..3 * plane).map(value).collect())
    }

    /// The bytes of a frame, [height, width, 3].
    fn frame(&self, frame: usize) -> &[u8] {
        let length = self.height as usize * self.width as usize * 3;
        &self.pixels_FHWC[frame * length..(frame + 1) * length]
    }

    fn shape(&self) -> String {
        format!("{}×{}×{}×3", self.frames, self.height, self.width)
    }
}
