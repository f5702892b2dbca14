//! Pictures of files: PNG, JPEG and WebP, of any size and kind, as 8-bit RGB that a person would see.

use crate::image::Image;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::{FilterType, crop_imm, resize};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageResult, Limits, RgbImage};
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// Endings of names of pictures, in lower case.
const ENDINGS: [&str; 4] = ["png", "jpg", "jpeg", "webp"];

/// Bytes of one decoded picture at most: one of 16,384 by 16,384 pixels in colour, or of half as many with 16 bits.
const MOST_BYTES: u64 = 1 << 30;

/// Bytes by which [`look`] knows a format.
const BEGINNING: usize = 64;

/// Bytes at the beginning of a JPEG file in which its size is looked for first.
const JPEG_HEADER: u64 = 1 << 20;

/// Beginnings of files that are no pictures, and what they are.
const OTHERS: [(&[u8], &str); 4] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "it is a pointer of Git LFS, and the picture itself was not fetched: run `git lfs pull` in its folder",
    ),
    (
        b"<",
        "it is HTML, XML or SVG, as a server answers that refuses a download; fetch the picture itself",
    ),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"%PDF", "it is a PDF; save its pictures as PNG"),
];

/// A picture cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct PictureError {
    /// What is wrong, and how to mend it; without the file.
    pub problem: String,
}

fn error(problem: impl Into<String>) -> PictureError {
    PictureError {
        problem: problem.into(),
    }
}

/// A picture as a person sees it: 8-bit RGB, upright.
///
/// The orientation that EXIF gives is applied; what is transparent lies over white; grey is repeated on the three channels; CMYK
/// is converted; of 16 bits the upper 8 count, rounded. Values are taken as sRGB: colour profiles are not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pixels: RgbImage,
}

impl Picture {
    /// Reads the file at `path`, whose contents say its format, whatever its name ends in.
    ///
    /// # Errors
    /// [`PictureError`] with the reason, without the path.
    pub fn read(path: &Path) -> Result<Self, PictureError> {
        let bytes = std::fs::read(path).map_err(|source| unreadable(path, &source))?;
        Self::decode(&bytes)
    }

    /// Of the bytes of a PNG, JPEG or WebP file.
    ///
    /// # Errors
    /// [`PictureError`] for other formats, for animations, and for files that are damaged or larger than a gibibyte when decoded.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        let format = format_of(bytes)?;
        let file = Cursor::new(bytes);
        let decoded = match format {
            ImageFormat::Png => {
                let decoder = PngDecoder::new(file).map_err(damaged)?;
                if decoder.is_apng().map_err(damaged)? {
                    return Err(animated());
                }
                upright(decoder)
            }
            ImageFormat::WebP => {
                let decoder = WebPDecoder::new(file).map_err(damaged)?;
                if decoder.has_animation() {
                    return Err(animated());
                }
                upright(decoder)
            }
            _ => upright(JpegDecoder::new(file).map_err(damaged)?),
        };
        Ok(Self {
            pixels: over_white(decoded.map_err(damaged)?),
        })
    }

    /// Of `width · height · 3` bytes, row by row: red, green, blue.
    ///
    /// # Errors
    /// [`PictureError`] if there are not so many, or none.
    pub fn from_rgb8(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self, PictureError> {
        let found = rgb.len();
        let sides = (u32::try_from(width).ok(), u32::try_from(height).ok());
        let pixels = match sides {
            (Some(width), Some(height)) if width > 0 && height > 0 => RgbImage::from_raw(width, height, rgb),
            _ => None,
        };
        // A longer buffer would be taken, too.
        let pixels = pixels.filter(|_| found == width * height * 3);
        let pixels = pixels.ok_or_else(|| {
            error(format!(
                "{found} bytes are no picture of {width} x {height} pixels"
            ))
        })?;
        Ok(Self { pixels })
    }

    /// Pixels from left to right.
    pub fn width(&self) -> usize {
        self.pixels.width() as usize
    }

    /// Pixels from top to bottom.
    pub fn height(&self) -> usize {
        self.pixels.height() as usize
    }

    /// The pixels, row by row: red, green, blue.
    pub fn rgb8(&self) -> &[u8] {
        self.pixels.as_raw()
    }

    /// Whether [`fitted`](Self::fitted) to this size enlarges it.
    pub fn is_smaller_than(&self, width: usize, height: usize) -> bool {
        self.width() < width || self.height() < height
    }

    /// The picture as one of `width` by `height` pixels: resized with its proportions until it covers that size, by Lanczos' kernel of
    /// three lobes with antialiasing, and cropped at both ends of the longer side alike. One of the right size stays as it is.
    ///
    /// # Panics
    /// If a side is 0.
    #[must_use]
    pub fn fitted(&self, width: usize, height: usize) -> Self {
        assert!(width > 0 && height > 0, "a picture has pixels");
        let (from_width, from_height) = (self.width(), self.height());
        if (from_width, from_height) == (width, height) {
            return self.clone();
        }
        let scale = (width as f64 / from_width as f64).max(height as f64 / from_height as f64);
        let side = |from: usize, to: usize| ((from as f64 * scale).round() as usize).max(to);
        let (whole_width, whole_height) = (side(from_width, width), side(from_height, height));
        let whole = resize(
            &self.pixels,
            whole_width as u32,
            whole_height as u32,
            FilterType::Lanczos3,
        );
        let (left, top) = ((whole_width - width) / 2, (whole_height - height) / 2);
        let cropped = crop_imm(&whole, left as u32, top as u32, width as u32, height as u32);
        Self {
            pixels: cropped.to_image(),
        }
    }

    /// Values in [-1, 1], three channels.
    pub fn to_image(&self) -> Image {
        let plane = self.width() * self.height();
        let rgb = self.rgb8();
        let value = |index: usize| f32::from(rgb[index % plane * 3 + index / plane]) / 127.5 - 1.0;
        Image {
            channels: 3,
            height: self.height(),
            width: self.width(),
            pixels_chw: (0..3 * plane).map(value).collect(),
        }
    }

    /// Values in [-1, 1] of its luma (ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B), one channel.
    pub fn to_grey(&self) -> Image {
        let luma = |rgb: &[u8]| {
            let [red, green, blue] = [rgb[0], rgb[1], rgb[2]].map(f32::from);
            (0.299 * red + 0.587 * green + 0.114 * blue) / 127.5 - 1.0
        };
        Image {
            channels: 1,
            height: self.height(),
            width: self.width(),
            pixels_chw: self.rgb8().chunks_exact(3).map(luma).collect(),
        }
    }
}

/// Whether there is a file at `path` that begins as a picture does; its pixels are not decoded.
///
/// # Errors
/// [`PictureError`] if there is none.
pub fn look(path: &Path) -> Result<(), PictureError> {
    let read = || {
        let mut beginning = Vec::with_capacity(BEGINNING);
        File::open(path)?
            .take(BEGINNING as u64)
            .read_to_end(&mut beginning)?;
        Ok(beginning)
    };
    let beginning: Vec<u8> = read().map_err(|source| unreadable(path, &source))?;
    format_of(&beginning).map(|_| ())
}

/// Width and height in pixels of the picture at `path`, upright as [`Picture::decode`] makes it. Its pixels are not decoded.
///
/// # Errors
/// [`PictureError`] if there is none, or its header is damaged.
pub fn size_of(path: &Path) -> Result<(usize, usize), PictureError> {
    let open = || File::open(path).map_err(|source| unreadable(path, &source));
    let mut beginning = Vec::with_capacity(BEGINNING);
    let read = open()?.take(BEGINNING as u64).read_to_end(&mut beginning);
    read.map_err(|source| unreadable(path, &source))?;
    let size = match format_of(&beginning)? {
        ImageFormat::Png => PngDecoder::new(BufReader::new(open()?)).and_then(upright_size),
        ImageFormat::WebP => WebPDecoder::new(BufReader::new(open()?)).and_then(upright_size),
        // Its decoder reads all that it is given, and wants a rest of the file only if the metadata are very long.
        _ => match jpeg_size(open()?.take(JPEG_HEADER)) {
            Err(_) => jpeg_size(open()?),
            found => found,
        },
    };
    size.map_err(damaged)
}

fn jpeg_size(mut file: impl Read) -> ImageResult<(usize, usize)> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    JpegDecoder::new(Cursor::new(bytes)).and_then(upright_size)
}

/// Width and height, exchanged where EXIF turns the picture by a quarter.
fn upright_size(mut decoder: impl ImageDecoder) -> ImageResult<(usize, usize)> {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    Ok(match decoder.orientation()? {
        Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => (height, width),
        _ => (width, height),
    })
}

/// Whether a name ends as those of pictures do.
pub fn is_picture_name(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.to_ascii_lowercase().as_str()))
}

/// The files below `folder` whose names end as those of pictures do, sorted by path, and how many others there are. What begins with a
/// dot is left out, as programs that make files for themselves name them.
///
/// # Errors
/// [`PictureError`] if a folder cannot be listed.
pub fn pictures_below(folder: &Path) -> Result<(Vec<PathBuf>, usize), PictureError> {
    let (mut found, mut others) = (Vec::new(), 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source: std::io::Error| error(format!("cannot list `{}`: {source}", folder.display()));
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.starts_with(b".") {
                continue;
            }
            match path.is_dir() {
                true => folders.push(path),
                false if is_picture_name(&path) => found.push(path),
                false => others += 1,
            }
        }
    }
    found.sort();
    Ok((found, others))
}

fn damaged(source: image::ImageError) -> PictureError {
    error(format!(
        "it cannot be decoded ({source}); it is damaged or cut off, so fetch or save it again"
    ))
}

fn animated() -> PictureError {
    error("it is an animation, and a picture is wanted; save one of its frames")
}

fn unreadable(path: &Path, source: &std::io::Error) -> PictureError {
    if path.is_dir() {
        return error("it is a folder, and a picture is wanted");
    }
    match source.kind() {
        std::io::ErrorKind::NotFound => error("there is no such file"),
        _ => error(format!("it cannot be read: {source}")),
    }
}

/// The format of a file by its beginning.
fn format_of(bytes: &[u8]) -> Result<ImageFormat, PictureError> {
    if bytes.is_empty() {
        return Err(error("it is empty"));
    }
    if let Some((_, what)) = OTHERS.iter().find(|(beginning, _)| bytes.starts_with(beginning)) {
        return Err(error(*what));
    }
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => Ok(format),
        Ok(other) => Err(error(format!(
            "it is in the format {other:?}, and PNG, JPEG and WebP are read; save it as one of these"
        ))),
        Err(_) => Err(error("it is no picture in PNG, JPEG or WebP")),
    }
}

/// The pixels, turned as EXIF says.
fn upright(mut decoder: impl ImageDecoder) -> Result<DynamicImage, image::ImageError> {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MOST_BYTES);
    decoder.set_limits(limits)?;
    let orientation = decoder.orientation()?;
    let mut decoded = DynamicImage::from_decoder(decoder)?;
    decoded.apply_orientation(orientation);
    Ok(decoded)
}

/// The pixels as RGB, what is transparent over white: `alpha · colour + (1 - alpha) · 255`.
fn over_white(decoded: DynamicImage) -> RgbImage {
    if !decoded.color().has_alpha() {
        return decoded.into_rgb8();
    }
    let pixels = decoded.into_rgba8();
    let (width, height) = pixels.dimensions();
    let mut rgb = RgbImage::new(width, height);
    for (to, from) in rgb.pixels_mut().zip(pixels.pixels()) {
        let [red, green, blue, alpha] = from.0;
        let over = |colour: u8| {
            let (colour, alpha) = (u32::from(colour), u32::from(alpha));
            // Rounded to the nearest.
            ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
        };
        to.0 = [over(red), over(green), over(blue)];
    }
    rgb
}
