//! Grids of sampled images with captions, as PNG.

use std::io::Cursor;

use image::{ImageFormat, Rgb, RgbImage};

use crate::error::{ReportError, Result};
use crate::font::{ADVANCE, GLYPH_WIDTH, LINE_HEIGHT, glyph};

const BACKGROUND: Rgb<u8> = Rgb([0xF7, 0xF7, 0xF5]);
const TEXT: Rgb<u8> = Rgb([0x1C, 0x1E, 0x22]);
const FAINT_TEXT: Rgb<u8> = Rgb([0x6A, 0x6E, 0x76]);
const RULE: Rgb<u8> = Rgb([0xD5, 0xD6, 0xD8]);
/// A pixel that is NaN or infinite. No image in -1..1 is mistaken for it, and it cannot be overlooked.
const NOT_FINITE: Rgb<u8> = Rgb([0xFF, 0x00, 0xFF]);

/// Pixels on each side above which a grid is refused rather than allocated.
pub(crate) const LARGEST_SIDE: u64 = 1 << 15;

/// One image: CHW `f32` in [-1, 1], one or three channels. Values outside are clamped; NaN and infinities are drawn
/// in magenta.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    channels: usize,
    height: u32,
    width: u32,
    pixels_CHW: Vec<f32>,
    label: String,
}

impl Tile {
    /// A tile of shape [channels, height, width].
    ///
    /// # Errors
    /// Channels other than 1 or 3, an empty side, or data of another length than the shape's.
    pub fn new(channels: usize, height: usize, width: usize, pixels_CHW: Vec<f32>) -> Result<Self> {
        let refuse = |problem: String| ReportError::Tile {
            tile: format!("{channels}×{height}×{width}"),
            problem,
        };
        if channels != 1 && channels != 3 {
            return Err(refuse(format!(
                "has {channels} channels; 1 (grey) and 3 (RGB) can be drawn"
            )));
        }
        let side = |side: usize| {
            u32::try_from(side)
                .ok()
                .filter(|s| *s > 0 && u64::from(*s) <= LARGEST_SIDE)
        };
        let (Some(height_px), Some(width_px)) = (side(height), side(width)) else {
            return Err(refuse(format!("sides must be 1 to {LARGEST_SIDE}")));
        };
        let expected = channels * height * width;
        if pixels_CHW.len() != expected {
            return Err(refuse(format!(
                "needs {expected} values, got {}",
                pixels_CHW.len()
            )));
        }
        Ok(Self {
            channels,
            height: height_px,
            width: width_px,
            pixels_CHW,
            label: String::new(),
        })
    }

    /// Sets the text under the tile, for example its reward.
    #[must_use]
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.label = text.into();
        self
    }

    /// How many values are NaN or infinite.
    pub fn not_finite(&self) -> usize {
        self.pixels_CHW.iter().filter(|value| !value.is_finite()).count()
    }

    /// The tile alone, without its label; each pixel becomes a square of `scale` pixels.
    ///
    /// # Errors
    /// If the picture would be larger than 32768 pixels on a side.
    pub fn picture(&self, scale: u32) -> Result<Picture> {
        let scale = scale.max(1);
        let (width, height) = (
            u64::from(self.width) * u64::from(scale),
            u64::from(self.height) * u64::from(scale),
        );
        if width.max(height) > LARGEST_SIDE {
            return Err(ReportError::Tile {
                tile: format!("{}×{}×{}", self.channels, self.height, self.width),
                problem: format!("would be {width}×{height} pixels at scale {scale}; use a smaller scale"),
            });
        }
        encoded(&RgbImage::from_fn(width as u32, height as u32, |x, y| {
            self.pixel(y / scale, x / scale)
        }))
    }

    fn pixel(&self, y: u32, x: u32) -> Rgb<u8> {
        let plane = (self.height * self.width) as usize;
        let at = (y * self.width + x) as usize;
        let value = |channel: usize| self.pixels_CHW[channel.min(self.channels - 1) * plane + at];
        let values = [value(0), value(1), value(2)];
        if values.iter().any(|value| !value.is_finite()) {
            return NOT_FINITE;
        }
        Rgb(values.map(|value| ((value.clamp(-1.0, 1.0) + 1.0) * 127.5).round() as u8))
    }
}

/// An encoded image.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
    /// The file's bytes.
    pub png: Vec<u8>,
}

struct Row {
    caption: String,
    groups: Vec<Vec<Tile>>,
}

/// Rows of tiles. A row has one group of tiles, or several side by side (before and after).
#[derive(Default)]
pub struct ImageGrid {
    title: String,
    headers: Vec<String>,
    rows: Vec<Row>,
    scale: Option<u32>,
}

impl ImageGrid {
    /// An empty grid.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the line above the grid.
    #[must_use]
    pub fn title(mut self, text: impl Into<String>) -> Self {
        self.title = text.into();
        self
    }

    /// Sets the text above each group of columns, for example "step 0" and "step 200".
    #[must_use]
    pub fn headers(mut self, headers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.headers = headers.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the side of the square that each pixel becomes (nearest neighbour). Without it, the scale that makes
    /// the largest tile about 96 pixels wide.
    #[must_use]
    pub fn scale(mut self, scale: u32) -> Self {
        self.scale = Some(scale.max(1));
        self
    }

    /// Adds a row of tiles under a caption, usually the prompt.
    pub fn row(&mut self, caption: impl Into<String>, tiles: Vec<Tile>) -> &mut Self {
        self.row_groups(caption, vec![tiles])
    }

    /// Adds a row with several groups of tiles side by side.
    pub fn row_groups(&mut self, caption: impl Into<String>, groups: Vec<Vec<Tile>>) -> &mut Self {
        self.rows.push(Row {
            caption: caption.into(),
            groups,
        });
        self
    }

    /// A grid with the tiles of `before` on the left and those of `after` on the right, a row for each prompt.
    ///
    /// # Errors
    /// If the two sides do not have a row for each prompt.
    pub fn before_after(
        headers: [&str; 2],
        prompts: &[String],
        before: Vec<Vec<Tile>>,
        after: Vec<Vec<Tile>>,
    ) -> Result<Self> {
        if before.len() != prompts.len() || after.len() != prompts.len() {
            let problem = format!(
                "before and after need one row for each of {} prompts, got {} and {}",
                prompts.len(),
                before.len(),
                after.len()
            );
            return Err(ReportError::Tile {
                tile: "grid".into(),
                problem,
            });
        }
        let mut grid = Self::new().headers(headers);
        for ((prompt, before), after) in prompts.iter().zip(before).zip(after) {
            grid.row_groups(prompt.clone(), vec![before, after]);
        }
        Ok(grid)
    }

    /// The grid as PNG. The same grid gives the same bytes.
    ///
    /// # Errors
    /// As [`ImageGrid::render`].
    pub fn picture(&self) -> Result<Picture> {
        encoded(&self.render()?)
    }

    /// Each tile as a picture of its own, without captions, row by row: its row and its column, both from 1, and the picture.
    ///
    /// # Errors
    /// As [`Tile::picture`].
    pub fn each(&self, scale: u32) -> Result<Vec<(usize, usize, Picture)>> {
        let mut pictures = Vec::new();
        for (tiles, row) in self.rows.iter().zip(1..) {
            for (tile, column) in tiles.groups.iter().flatten().zip(1..) {
                pictures.push((row, column, tile.picture(scale)?));
            }
        }
        Ok(pictures)
    }

    /// Draws the grid.
    ///
    /// # Errors
    /// If there is no tile, or the picture would be larger than 32768 pixels on a side.
    pub fn render(&self) -> Result<RgbImage> {
        let layout = Layout::of(self)?;
        let mut canvas = RgbImage::from_pixel(layout.width, layout.height, BACKGROUND);
        let (pad, text) = (layout.padding, layout.text_scale);
        let mut top = pad;
        if !self.title.is_empty() {
            let lines = layout.wrap(&self.title, layout.width - 2 * pad);
            top = draw_lines(&mut canvas, &lines, (pad, top), text, FAINT_TEXT) + 2 * pad;
        }
        if !self.headers.is_empty() {
            let mut bottom = top;
            for (header, group) in self.headers.iter().zip(0..) {
                let lines = layout.wrap(header, layout.group_width(group));
                let end = draw_lines(
                    &mut canvas,
                    &lines,
                    (layout.group_left(group), top),
                    text,
                    FAINT_TEXT,
                );
                bottom = bottom.max(end);
            }
            top = bottom + pad / 2;
            fill(&mut canvas, (pad, top), (layout.width - 2 * pad, 1), RULE);
            top += 1 + pad;
        }
        for row in &self.rows {
            top = layout.draw_row(&mut canvas, row, top);
        }
        Ok(canvas)
    }

    fn tiles(&self) -> impl Iterator<Item = &Tile> {
        self.rows.iter().flat_map(|row| row.groups.iter().flatten())
    }
}

fn encoded(canvas: &RgbImage) -> Result<Picture> {
    let mut bytes = Cursor::new(Vec::new());
    canvas
        .write_to(&mut bytes, ImageFormat::Png)
        .map_err(|e| ReportError::Tile {
            tile: "picture".into(),
            problem: format!("cannot be encoded: {e}"),
        })?;
    Ok(Picture {
        width: canvas.width(),
        height: canvas.height(),
        png: bytes.into_inner(),
    })
}

struct Layout {
    scale: u32,
    text_scale: u32,
    padding: u32,
    /// Size of the place for one tile.
    cell: (u32, u32),
    /// Columns of each group.
    columns: Vec<u32>,
    width: u32,
    height: u32,
}

impl Layout {
    fn of(grid: &ImageGrid) -> Result<Self> {
        let refuse = |problem: String| ReportError::Tile {
            tile: "grid".into(),
            problem,
        };
        let largest = |side: fn(&Tile) -> u32| grid.tiles().map(side).max();
        let (Some(width), Some(height)) = (largest(|tile| tile.width), largest(|tile| tile.height)) else {
            return Err(refuse("has no tiles".into()));
        };
        let scale = grid.scale.unwrap_or_else(|| (96 / width).clamp(1, 16));
        let groups = grid
            .rows
            .iter()
            .map(|row| row.groups.len())
            .max()
            .unwrap_or(0)
            .max(grid.headers.len());
        let longest = |group: usize| {
            grid.rows
                .iter()
                .filter_map(|row| row.groups.get(group))
                .map(Vec::len)
                .max()
        };
        let columns: Vec<u32> = (0..groups)
            .map(|group| longest(group).unwrap_or(0).max(1) as u32)
            .collect();
        let all_columns: u64 = columns.iter().map(|count| u64::from(*count)).sum();
        let wide = all_columns * (u64::from(width) * u64::from(scale) + 16);
        let tall = grid.rows.len() as u64 * (u64::from(height) * u64::from(scale) + 16);
        if wide > LARGEST_SIDE || tall > LARGEST_SIDE {
            let problem =
                format!("would be {wide}×{tall} pixels at scale {scale}; use a smaller scale or fewer tiles");
            return Err(refuse(problem));
        }
        let cell = (width * scale, height * scale);
        let text_scale = if cell.0 >= 48 { 2 } else { 1 };
        let padding = 4 * text_scale;
        let mut layout = Self {
            scale,
            text_scale,
            padding,
            cell,
            columns,
            width: 0,
            height: 0,
        };
        // Short rows of small tiles are widened so that a caption does not break after each word.
        let caption = grid
            .rows
            .iter()
            .map(|row| layout.text_width(&row.caption))
            .max()
            .unwrap_or(0);
        let tiles = layout.group_left(groups) - layout.group_gap();
        layout.width = (tiles + 2 * padding).max(caption.min(160 * text_scale) + 2 * padding);
        layout.height = layout.measure(grid);
        if u64::from(layout.height) > LARGEST_SIDE {
            return Err(refuse(format!(
                "would be {} pixels high; use fewer rows",
                layout.height
            )));
        }
        Ok(layout)
    }

    fn measure(&self, grid: &ImageGrid) -> u32 {
        let lines = |text: &str, width: u32| self.wrap(text, width).len() as u32 * self.line_height();
        let pad = self.padding;
        let mut height = pad;
        if !grid.title.is_empty() {
            height += lines(&grid.title, self.width - 2 * pad) + 2 * pad;
        }
        if !grid.headers.is_empty() {
            let tallest = grid
                .headers
                .iter()
                .zip(0..)
                .map(|(text, group)| lines(text, self.group_width(group)))
                .max();
            height += tallest.unwrap_or(0) + pad / 2 + 1 + pad;
        }
        for row in &grid.rows {
            height += self.caption_height(row) + self.cell.1 + self.label_height(row) + 2 * pad;
        }
        height
    }

    fn draw_row(&self, canvas: &mut RgbImage, row: &Row, mut top: u32) -> u32 {
        let captions = self.wrap(&row.caption, self.width - 2 * self.padding);
        draw_lines(canvas, &captions, (self.padding, top), self.text_scale, TEXT);
        top += self.caption_height(row);
        for (group, tiles) in row.groups.iter().enumerate() {
            for (column, tile) in tiles.iter().enumerate() {
                let left = self.group_left(group) + column as u32 * (self.cell.0 + self.padding);
                self.draw_tile(canvas, tile, (left, top));
                let labels = self.wrap(&tile.label, self.cell.0);
                let below = (left, top + self.cell.1 + self.padding / 2);
                draw_lines(canvas, &labels, below, self.text_scale, FAINT_TEXT);
            }
        }
        top + self.cell.1 + self.label_height(row) + 2 * self.padding
    }

    fn draw_tile(&self, canvas: &mut RgbImage, tile: &Tile, (left, top): (u32, u32)) {
        for y in 0..tile.height {
            for x in 0..tile.width {
                let corner = (left + x * self.scale, top + y * self.scale);
                fill(canvas, corner, (self.scale, self.scale), tile.pixel(y, x));
            }
        }
    }

    fn caption_height(&self, row: &Row) -> u32 {
        if row.caption.is_empty() {
            return 0;
        }
        self.wrap(&row.caption, self.width - 2 * self.padding).len() as u32 * self.line_height()
            + self.padding / 2
    }

    fn label_height(&self, row: &Row) -> u32 {
        let lines = |tile: &Tile| {
            if tile.label.is_empty() {
                0
            } else {
                self.wrap(&tile.label, self.cell.0).len()
            }
        };
        match row.groups.iter().flatten().map(lines).max().unwrap_or(0) {
            0 => 0,
            lines => lines as u32 * self.line_height() + self.padding / 2,
        }
    }

    fn group_gap(&self) -> u32 {
        3 * self.padding
    }

    fn group_width(&self, group: usize) -> u32 {
        let columns = self.columns.get(group).copied().unwrap_or(1);
        columns * self.cell.0 + (columns - 1) * self.padding
    }

    fn group_left(&self, group: usize) -> u32 {
        self.padding
            + (0..group)
                .map(|earlier| self.group_width(earlier) + self.group_gap())
                .sum::<u32>()
    }

    fn line_height(&self) -> u32 {
        (LINE_HEIGHT + 2) * self.text_scale
    }

    fn text_width(&self, text: &str) -> u32 {
        let letters = text.chars().count().min(LARGEST_SIDE as usize) as u32;
        (letters * ADVANCE).saturating_sub(ADVANCE - GLYPH_WIDTH) * self.text_scale
    }

    /// Breaks a text into lines of at most `width` pixels, at spaces where it can.
    fn wrap(&self, text: &str, width: u32) -> Vec<String> {
        let most = ((width + self.text_scale) / (ADVANCE * self.text_scale)).max(1) as usize;
        let mut lines = vec![String::new()];
        for word in text.split_whitespace() {
            let letters: Vec<char> = word.chars().collect();
            for (index, part) in letters.chunks(most).enumerate() {
                let part: String = part.iter().collect();
                let line = lines.last().map_or(0, |line| line.chars().count());
                let fits = line + 1 + part.chars().count() <= most;
                match lines.last_mut() {
                    Some(last) if line == 0 => *last = part,
                    Some(last) if index == 0 && fits => *last += &format!(" {part}"),
                    _ => lines.push(part),
                }
            }
        }
        lines
    }
}

fn fill(canvas: &mut RgbImage, (left, top): (u32, u32), (width, height): (u32, u32), colour: Rgb<u8>) {
    let (right, bottom) = (
        (left + width).min(canvas.width()),
        (top + height).min(canvas.height()),
    );
    for y in top..bottom {
        for x in left..right {
            canvas.put_pixel(x, y, colour);
        }
    }
}

/// Draws lines of text from the corner down and returns where the next line would begin.
fn draw_lines(
    canvas: &mut RgbImage,
    lines: &[String],
    corner: (u32, u32),
    scale: u32,
    colour: Rgb<u8>,
) -> u32 {
    let mut top = corner.1;
    for line in lines {
        for (column, letter) in (0_u32..).zip(line.chars()) {
            let (rows, drop) = glyph(letter);
            let left = corner.0 + column * ADVANCE * scale;
            for (y, row) in (0_u32..).zip(rows) {
                for x in (0..GLYPH_WIDTH).filter(|x| row >> (GLYPH_WIDTH - 1 - x) & 1 == 1) {
                    fill(
                        canvas,
                        (left + x * scale, top + (y + drop) * scale),
                        (scale, scale),
                        colour,
                    );
                }
            }
        }
        top += (LINE_HEIGHT + 2) * scale;
    }
    top
}
