//! Scenes of coloured shapes, laid out and painted with anti-aliasing.
//!
//! The coverage functions are public because the rule checker of `flow-rewards` compares what it finds in a
//! generated image with the ideal shape, painted the same way.

use crate::image::Image;
use crate::prompt::{Colour, Position, Shape};
use flow_rng::Draws;

/// The colour of the background, as red, green, blue in [-1, 1].
pub const BACKGROUND: [f32; 3] = [-0.8; 3];

/// Samples per pixel and direction.
const SUBSAMPLES: usize = 4;
/// Least distance between the bounding boxes of two objects, as a share of the side: 1.5 pixels at 24.
const GAP: f32 = 1.5 / 24.0;
/// Least distance between a bounding box and the edge of the image, as a share of the side: half a pixel at 24.
const MARGIN: f32 = 0.5 / 24.0;
/// Tries for all objects of a scene before the radii shrink.
const TRIES_PER_SIZE: usize = 50;
/// By which the radii shrink if the objects found no place.
const SHRINK: f32 = 0.95;

/// One object of a scene, in pixels; x grows to the right, y downwards, and pixel (row, column) spans
/// [column, column + 1) × [row, row + 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Object {
    /// Outline.
    pub shape: Shape,
    /// Horizontal place of the centroid.
    pub center_x: f32,
    /// Vertical place of the centroid.
    pub center_y: f32,
    /// Radius of the disc with the same area, so that size does not tell shapes apart.
    pub radius: f32,
}

impl Object {
    /// Distances from the centroid to the left or right, to the top and to the bottom of the bounding box.
    pub fn extents(&self) -> (f32, f32, f32) {
        let r = self.radius;
        match self.shape {
            Shape::Circle => (r, r, r),
            Shape::Square => {
                let half = r * std::f32::consts::PI.sqrt() / 2.0;
                (half, half, half)
            }
            Shape::Triangle => {
                // An equilateral triangle of side s has the area √3/4 s² and its centroid at a third of its height.
                let side = r * (4.0 * std::f32::consts::PI / 3f32.sqrt()).sqrt();
                let height = side * 3f32.sqrt() / 2.0;
                (side / 2.0, height * 2.0 / 3.0, height / 3.0)
            }
        }
    }

    /// Whether the object covers a point.
    pub fn contains(&self, x: f32, y: f32) -> bool {
        let (dx, dy) = (x - self.center_x, y - self.center_y);
        let (half_width, up, down) = self.extents();
        match self.shape {
            Shape::Circle => dx * dx + dy * dy <= self.radius * self.radius,
            Shape::Square => dx.abs() <= half_width && dy.abs() <= half_width,
            Shape::Triangle => {
                let from_tip = dy + up;
                dy <= down && from_tip >= 0.0 && dx.abs() <= half_width * from_tip / (up + down)
            }
        }
    }

    /// The share of a pixel that the object covers, from 4×4 samples.
    pub fn coverage(&self, row: usize, column: usize) -> f32 {
        let mut hits = 0;
        for sub_y in 0..SUBSAMPLES {
            for sub_x in 0..SUBSAMPLES {
                let x = column as f32 + (sub_x as f32 + 0.5) / SUBSAMPLES as f32;
                let y = row as f32 + (sub_y as f32 + 0.5) / SUBSAMPLES as f32;
                hits += usize::from(self.contains(x, y));
            }
        }
        hits as f32 / (SUBSAMPLES * SUBSAMPLES) as f32
    }

    /// Left, top, right and bottom of the bounding box.
    pub fn bounds(&self) -> [f32; 4] {
        let (half_width, up, down) = self.extents();
        [
            self.center_x - half_width,
            self.center_y - up,
            self.center_x + half_width,
            self.center_y + down,
        ]
    }
}

/// A square image's worth of objects of one colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Height and width in pixels.
    pub size: usize,
    /// Colour of every object.
    pub colour: Colour,
    /// The objects; none overlaps another.
    pub objects: Vec<Object>,
}

impl Scene {
    /// Places `count` objects of one colour and shape at random.
    ///
    /// Bounding boxes keep 1/16 of the side between them and stay inside the image.
    /// A single object with a position has its centroid in the outer 35 % on that side and within a tenth of the
    /// side of the middle in the other direction.
    pub fn place(
        size: usize,
        count: u8,
        colour: Colour,
        shape: Shape,
        position: Option<Position>,
        stream: &mut Draws,
    ) -> Self {
        let side = size as f32;
        // Few objects may be larger; at 24 pixels these are radii of 3.4 to 4.6, 2.9 to 3.8 and 2.5 to 3.2.
        let (least, most) = match count {
            0 | 1 => (0.14, 0.19),
            2 => (0.12, 0.16),
            _ => (0.105, 0.133),
        };
        let mut scale = 1.0;
        loop {
            for _ in 0..TRIES_PER_SIZE {
                let objects: Vec<Object> = (0..count)
                    .map(|_| {
                        let radius = side * scale * stream.uniform_in(least, most);
                        let (x, y) = (stream.uniform() as f32, stream.uniform() as f32);
                        place_object(side, shape, radius, position, x, y)
                    })
                    .collect();
                if objects
                    .iter()
                    .enumerate()
                    .all(|(i, a)| objects[..i].iter().all(|b| apart(a, b, GAP * side)))
                {
                    return Self {
                        size,
                        colour,
                        objects,
                    };
                }
            }
            // Smaller objects always find room in the end, so the loop ends.
            scale *= SHRINK;
        }
    }

    /// Paints the scene: colour where an object is, background elsewhere, mixed by coverage at the edges.
    pub fn render(&self) -> Image {
        let plane = self.size * self.size;
        let mut pixels_chw = Vec::with_capacity(3 * plane);
        for background in BACKGROUND {
            pixels_chw.resize(pixels_chw.len() + plane, background);
        }
        let colour = self.colour.rgb();
        for object in &self.objects {
            for (row, column) in self.pixels_near(object) {
                let coverage = object.coverage(row, column);
                for channel in 0..3 {
                    pixels_chw[channel * plane + row * self.size + column] +=
                        coverage * (colour[channel] - BACKGROUND[channel]);
                }
            }
        }
        Image {
            channels: 3,
            height: self.size,
            width: self.size,
            pixels_chw,
        }
    }

    fn pixels_near(&self, object: &Object) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [left, top, right, bottom] = object.bounds();
        let clip = |value: f32| (value.max(0.0) as usize).min(self.size);
        let (rows, columns) = (clip(top)..clip(bottom.ceil()), clip(left)..clip(right.ceil()));
        rows.flat_map(move |row| columns.clone().map(move |column| (row, column)))
    }
}

/// Puts an object at the share (`x`, `y`) of the places that it may have.
fn place_object(side: f32, shape: Shape, radius: f32, position: Option<Position>, x: f32, y: f32) -> Object {
    let object = Object {
        shape,
        center_x: 0.0,
        center_y: 0.0,
        radius,
    };
    let (half_width, up, down) = object.extents();
    let margin = MARGIN * side;
    let (mut x_range, mut y_range) = (
        [half_width + margin, side - half_width - margin],
        [up + margin, side - down - margin],
    );
    let middle = [0.4 * side, 0.6 * side];
    match position {
        None => {}
        Some(Position::Left) => (x_range, y_range) = ([x_range[0], 0.35 * side], middle),
        Some(Position::Right) => (x_range, y_range) = ([0.65 * side, x_range[1]], middle),
        Some(Position::Top) => (x_range, y_range) = (middle, [y_range[0], 0.35 * side]),
        Some(Position::Bottom) => (x_range, y_range) = (middle, [0.65 * side, y_range[1]]),
    }
    let at = |[low, high]: [f32; 2], share: f32| low + (high - low) * share;
    Object {
        center_x: at(x_range, x),
        center_y: at(y_range, y),
        ..object
    }
}

fn apart(a: &Object, b: &Object, gap: f32) -> bool {
    let ([a_left, a_top, a_right, a_bottom], [b_left, b_top, b_right, b_bottom]) = (a.bounds(), b.bounds());
    a_right + gap <= b_left || b_right + gap <= a_left || a_bottom + gap <= b_top || b_bottom + gap <= a_top
}
