//! Words drawn black on white in one of six fonts.

use crate::error::DataError;
use crate::image::{Image, ImageShape};
use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use flow_rng::Draws;

/// The fonts; `fonts/README.md` says whose they are.
const FONTS: [&[u8]; 6] = [
    include_bytes!("../../fonts/DejaVuSans.ttf"),
    include_bytes!("../../fonts/DejaVuSansMono.ttf"),
    include_bytes!("../../fonts/DejaVuSerif.ttf"),
    include_bytes!("../../fonts/Roboto-Bold.ttf"),
    include_bytes!("../../fonts/Roboto-Regular.ttf"),
    include_bytes!("../../fonts/RobotoCondensed-Regular.ttf"),
];

/// Height of a line as a share of the picture's, before it is made to fit the width.
const LINES: [f32; 2] = [0.65, 0.95];
/// What stays free at either end of a word: this share of the width.
const MARGIN: f32 = 0.03;

/// The fonts, read.
#[derive(Debug, Clone)]
pub(super) struct Typesetter {
    fonts: Vec<FontRef<'static>>,
}

impl Typesetter {
    /// Reads the fonts.
    pub fn new() -> Result<Self, DataError> {
        let read = |bytes: &'static [u8]| {
            FontRef::try_from_slice(bytes).map_err(|error| DataError::Pictures {
                problem: format!("a font inside the program cannot be read: {error}"),
            })
        };
        Ok(Self {
            fonts: FONTS.into_iter().map(read).collect::<Result<_, _>>()?,
        })
    }

    /// `word` in a font, size and place of `draws`, all of it inside the picture.
    pub fn image(&self, word: &str, shape: ImageShape, draws: &mut Draws) -> Result<Image, DataError> {
        let font = &self.fonts[draws.below(self.fonts.len() as u64) as usize];
        let (width, height) = (shape.width as f32, shape.height as f32);
        let wanted = height * draws.uniform_in(LINES[0], LINES[1]);
        let margin = (width * MARGIN).max(1.0);
        let room = width - 2.0 * margin;
        let [left, right] = ends(font, word, wanted);
        let line = wanted * (room / (right - left)).min(1.0);
        let [left, right] = ends(font, word, line);
        let scaled = font.as_scaled(PxScale::from(line));
        let mut x = margin - left + (room - (right - left)).max(0.0) * draws.uniform_in(0.0, 1.0);
        let y = (height - scaled.height()).max(0.0) * draws.uniform_in(0.0, 1.0) + scaled.ascent();
        let mut ink_hw = vec![0.0f32; shape.height * shape.width];
        for letter in word.chars() {
            let glyph = scaled.glyph_id(letter);
            let placed = glyph.with_scale_and_position(PxScale::from(line), point(x, y));
            x += scaled.h_advance(glyph);
            let Some(outlined) = font.outline_glyph(placed) else {
                continue;
            };
            let corner = outlined.px_bounds().min;
            outlined.draw(|column, row, cover| {
                let (row, column) = (corner.y + row as f32, corner.x + column as f32);
                if (0.0..height).contains(&row) && (0.0..width).contains(&column) {
                    ink_hw[row as usize * shape.width + column as usize] += cover;
                }
            });
        }
        let paper = |ink: &f32| 1.0 - 2.0 * ink.clamp(0.0, 1.0);
        let plane: Vec<f32> = ink_hw.iter().map(paper).collect();
        Image::new(shape, plane.repeat(shape.channels))
    }
}

/// Where the ink of `word` begins and ends in lines of a height, in pixels from where its first letter is set: letters hang over the places
/// that they take.
fn ends(font: &FontRef<'_>, word: &str, line: f32) -> [f32; 2] {
    let scaled = font.as_scaled(PxScale::from(line));
    let (mut x, mut ends) = (0.0, [f32::INFINITY, f32::NEG_INFINITY]);
    for letter in word.chars() {
        let glyph = scaled.glyph_id(letter);
        if let Some(outline) = font.outline(glyph) {
            let factor = scaled.h_scale_factor();
            ends[0] = ends[0].min(x + outline.bounds.min.x * factor);
            ends[1] = ends[1].max(x + outline.bounds.max.x * factor);
        }
        x += scaled.h_advance(glyph);
    }
    match ends[0] <= ends[1] {
        true => ends,
        // Nothing is drawn.
        false => [0.0, x],
    }
}
