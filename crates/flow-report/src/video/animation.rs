//! Animated pictures: APNG, which keeps every pixel, and GIF, which every program shows.

use std::io;
use std::path::Path;

use gif::Repeat;

use super::Video;

/// Units of a second in which APNG gives the time of a frame: rates are exact to a hundredth.
const APNG_TICKS: u16 = 100;
/// Units of a second in which GIF does.
const GIF_TICKS: f64 = 100.0;
/// How quick the choice of a GIF's colours is, from 1, the best, to 30. The crate calls 10 a good compromise.
const GIF_SPEED: i32 = 10;

/// A format of animated pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Animation {
    /// Animated PNG, without loss. A program that does not know it shows the first frame.
    Png,
    /// GIF: at most 256 colours a frame, without loss only if a frame has no more.
    Gif,
}

impl Animation {
    /// The format of a path's ending: `.png` or `.apng`, or `.gif`, whatever their case.
    pub fn of_path(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "png" | "apng" => Some(Self::Png),
            "gif" => Some(Self::Gif),
            _ => None,
        }
    }

    pub(super) fn encode(self, video: &Video) -> Result<Vec<u8>, String> {
        match self {
            Self::Png => png_bytes(video).map_err(|error| error.to_string()),
            Self::Gif => gif_bytes(video).map_err(|error| error.to_string()),
        }
    }
}

fn png_bytes(video: &Video) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, video.width, video.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_animated(video.frames, 0)?;
    let ticks_a_second = (f64::from(APNG_TICKS) * video.frame_rate_hz).round() as u16;
    encoder.set_frame_delay(APNG_TICKS, ticks_a_second)?;
    let mut writer = encoder.write_header()?;
    for frame in 0..video.frames() {
        writer.write_image_data(video.frame(frame))?;
    }
    writer.finish()?;
    Ok(bytes)
}

fn gif_bytes(video: &Video) -> Result<Vec<u8>, gif::EncodingError> {
    let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "a side is too large for GIF");
    let side = |side: u32| u16::try_from(side).map_err(|_| too_large());
    let (width, height) = (side(video.width)?, side(video.height)?);
    let mut encoder = gif::Encoder::new(Vec::new(), width, height, &[])?;
    encoder.set_repeat(Repeat::Infinite)?;
    for frame in 0..video.frames() {
        let mut picture = gif::Frame::from_rgb_speed(width, height, video.frame(frame), GIF_SPEED);
        picture.delay = gif_delay(frame, video.frame_rate_hz);
        encoder.write_frame(&picture)?;
    }
    Ok(encoder.into_inner()?)
}

/// The time of a frame in hundredths of a second. What is lost by rounding is made up by the next frame, so that the video is as long as
/// it should be.
fn gif_delay(frame: usize, frame_rate_hz: f64) -> u16 {
    let begin = |frame: usize| (frame as f64 * GIF_TICKS / frame_rate_hz).round();
    (begin(frame + 1) - begin(frame)) as u16
}
