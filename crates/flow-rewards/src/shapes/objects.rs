//! Finding and naming the objects of a scene.
//!
//! 1. A pixel belongs to an object if one of its channels is more than halfway from the background to a full colour.
//! 2. Objects are the 4-connected components of these pixels; those below a hundredth of the image are specks.
//! 3. The colour is the corner of the RGB cube in whose direction from the background the mean of the object lies.
//! 4. The shape is the one that, painted with the object's own area at its own centroid, covers it best; an object that
//!    no shape covers well has none.
//! 5. A component of more than 30 % of the image is background in another colour: it has neither colour nor shape.
//!
//! Comparing with painted shapes, and not thresholds on fill ratio and extent, is what makes circles and squares of six
//! pixels tell apart: their fill ratios differ by 0.2, which anti-aliasing and noise blur.

use flow_data::{BACKGROUND, Colour, Image, Object, Shape};

/// From the background to a channel that is fully on.
const FULL: f32 = 1.6;
/// Least share of [`FULL`] in the strongest channel of an object's pixel.
const LEAST_STRENGTH: f32 = 0.5;
/// Least share of the image's pixels in an object.
const LEAST_AREA: f32 = 0.01;
/// Share of the image's pixels above which a component is no object; the data set's objects have at most 12 %.
///
/// Otherwise an image filled with red would be one red square.
const MOST_AREA: f32 = 0.3;
/// Least cosine between an object's mean and a colour; neighbouring colours are at 0.71, white and a colour at 0.82.
const LEAST_COSINE: f32 = 0.9;
/// Least overlap (intersection over union of coverages) with the best shape.
const LEAST_OVERLAP: f32 = 0.7;

/// An object in an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundObject {
    /// Its colour, if it is one of the six.
    pub colour: Option<Colour>,
    /// Its shape, if it is one of the three.
    pub shape: Option<Shape>,
    /// Horizontal place of its centroid as a share of the width, 0 on the left.
    pub x: f32,
    /// Vertical place of its centroid as a share of the height, 0 at the top.
    pub y: f32,
    /// Its area in pixels, with partly covered pixels counted in part.
    pub area: f32,
    /// Overlap with the best shape, 0 to 1.
    pub overlap: f32,
}

/// The objects of a square RGB image, the largest first.
///
/// # Errors
/// A sentence about the image's shape.
pub fn find_objects(image: &Image) -> Result<Vec<FoundObject>, String> {
    let size = image.height;
    if image.channels != 3 || image.width != size || !(8..=4096).contains(&size) {
        return Err(format!(
            "the rules read square images of three channels with 8 to 4096 pixels a side, and this one is {}",
            image.shape()
        ));
    }
    let offsets = offsets_from_background(image);
    let (labels, members) = components(&offsets, size);
    let least = LEAST_AREA * (size * size) as f32;
    let mut objects: Vec<FoundObject> = members
        .iter()
        .filter(|pixels| pixels.len() as f32 >= least)
        .map(|pixels| describe(&offsets, &labels, pixels, size))
        .collect();
    // A stable sort: equally large objects stay in reading order.
    objects.sort_by(|a, b| b.area.total_cmp(&a.area));
    Ok(objects)
}

/// Red, green and blue of every pixel relative to the background; images are clamped to their range first.
fn offsets_from_background(image: &Image) -> Vec<[f32; 3]> {
    let plane = image.height * image.width;
    let offset = |channel: usize, pixel: usize| {
        image.pixels_chw[channel * plane + pixel].clamp(-1.0, 1.0) - BACKGROUND[channel]
    };
    (0..plane)
        .map(|pixel| std::array::from_fn(|channel| offset(channel, pixel)))
        .collect()
}

fn strength(offset: &[f32; 3]) -> f32 {
    offset.iter().copied().fold(0.0, f32::max) / FULL
}

/// The label of every pixel (0 for background) and the pixels of label 1, 2, …, in reading order of first pixels.
fn components(offsets: &[[f32; 3]], size: usize) -> (Vec<u32>, Vec<Vec<usize>>) {
    let mut labels = vec![0u32; offsets.len()];
    let mut members: Vec<Vec<usize>> = Vec::new();
    for start in 0..offsets.len() {
        if labels[start] != 0 || strength(&offsets[start]) <= LEAST_STRENGTH {
            continue;
        }
        let label = members.len() as u32 + 1;
        labels[start] = label;
        let mut pixels = vec![start];
        let mut next = 0;
        while let Some(&pixel) = pixels.get(next) {
            next += 1;
            for neighbour in neighbours(pixel, size, &[(-1, 0), (1, 0), (0, -1), (0, 1)]) {
                if labels[neighbour] == 0 && strength(&offsets[neighbour]) > LEAST_STRENGTH {
                    labels[neighbour] = label;
                    pixels.push(neighbour);
                }
            }
        }
        members.push(pixels);
    }
    (labels, members)
}

fn neighbours(pixel: usize, size: usize, steps: &[(isize, isize)]) -> impl Iterator<Item = usize> {
    let (row, column) = ((pixel / size) as isize, (pixel % size) as isize);
    steps.iter().filter_map(move |(down, right)| {
        let (row, column) = (
            usize::try_from(row + down).ok()?,
            usize::try_from(column + right).ok()?,
        );
        (row < size && column < size).then_some(row * size + column)
    })
}

fn describe(offsets: &[[f32; 3]], labels: &[u32], pixels: &[usize], size: usize) -> FoundObject {
    let colour = colour_of(offsets, pixels);
    let coverage = coverage_with_edge(offsets, labels, pixels, size, colour);
    let (mut area, mut moment_x, mut moment_y) = (0.0, 0.0, 0.0);
    for &(pixel, share) in &coverage {
        area += share;
        moment_x += share * ((pixel % size) as f32 + 0.5);
        moment_y += share * ((pixel / size) as f32 + 0.5);
    }
    let (center_x, center_y) = (moment_x / area, moment_y / area);
    let radius = (area / std::f32::consts::PI).sqrt();
    let mut best: (Option<Shape>, f32) = (None, 0.0);
    for shape in Shape::ALL {
        let overlap = overlap(
            &coverage,
            &Object {
                shape,
                center_x,
                center_y,
                radius,
            },
            size,
        );
        if overlap > best.1 {
            best = (Some(shape), overlap);
        }
    }
    let too_large = pixels.len() as f32 > MOST_AREA * (size * size) as f32;
    FoundObject {
        colour: colour.filter(|_| !too_large),
        shape: best.0.filter(|_| best.1 >= LEAST_OVERLAP && !too_large),
        x: center_x / size as f32,
        y: center_y / size as f32,
        area,
        overlap: best.1,
    }
}

fn colour_of(offsets: &[[f32; 3]], pixels: &[usize]) -> Option<Colour> {
    let sum = pixels.iter().fold([0.0f32; 3], |sum, &pixel| {
        std::array::from_fn(|c| sum[c] + offsets[pixel][c])
    });
    let length = dot(&sum, &sum).sqrt();
    let mut best = (None, LEAST_COSINE);
    for colour in Colour::ALL {
        let direction = direction(colour);
        let cosine = dot(&sum, &direction) / (length * dot(&direction, &direction).sqrt());
        if cosine > best.1 {
            best = (Some(colour), cosine);
        }
    }
    best.0
}

/// From the background to a colour.
fn direction(colour: Colour) -> [f32; 3] {
    let rgb = colour.rgb();
    std::array::from_fn(|channel| rgb[channel] - BACKGROUND[channel])
}

fn dot(a: &[f32; 3], b: &[f32; 3]) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// The pixels of an object and those around it, each with the share that the object covers.
///
/// The pixels around it are those of its anti-aliased edge that are below the threshold.
fn coverage_with_edge(
    offsets: &[[f32; 3]],
    labels: &[u32],
    pixels: &[usize],
    size: usize,
    colour: Option<Colour>,
) -> Vec<(usize, f32)> {
    const AROUND: [(isize, isize); 8] = [
        (-1, -1),
        (-1, 0),
        (-1, 1),
        (0, -1),
        (0, 1),
        (1, -1),
        (1, 0),
        (1, 1),
    ];
    let mut with_edge: Vec<usize> = pixels.to_vec();
    for &pixel in pixels {
        with_edge.extend(neighbours(pixel, size, &AROUND).filter(|&other| labels[other] == 0));
    }
    with_edge.sort_unstable();
    with_edge.dedup();
    let share = |pixel: usize| {
        let offset = &offsets[pixel];
        let share = match colour {
            // The projection on the colour: noise in the other channels does not count.
            Some(colour) => {
                let direction = direction(colour);
                dot(offset, &direction) / dot(&direction, &direction)
            }
            None => strength(offset),
        };
        share.clamp(0.0, 1.0)
    };
    with_edge.into_iter().map(|pixel| (pixel, share(pixel))).collect()
}

/// Intersection over union of an object's coverage and a painted shape's.
fn overlap(coverage: &[(usize, f32)], template: &Object, size: usize) -> f32 {
    let [left, top, right, bottom] = template.bounds();
    let clip = |value: f32| (value.max(0.0) as usize).min(size);
    let (rows, columns) = (clip(top)..clip(bottom.ceil()), clip(left)..clip(right.ceil()));
    // The union is both areas less the intersection.
    let mut template_area = 0.0;
    for row in rows {
        for column in columns.clone() {
            template_area += template.coverage(row, column);
        }
    }
    let (mut intersection, mut area) = (0.0, 0.0);
    for &(pixel, share) in coverage {
        intersection += share.min(template.coverage(pixel / size, pixel % size));
        area += share;
    }
    intersection / (area + template_area - intersection)
}
