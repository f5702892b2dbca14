//! From a map of probabilities to boxes of text.
//!
//! Source: PaddleOCR 2.9, `ppocr/postprocess/db_postprocess.py` (`boxes_from_bitmap` with the score mode "fast"),
//! `tools/infer/predict_det.py` (`filter_tag_det_res`) and `predict_system.py` (`sorted_boxes`). There contours are OpenCV's, here
//! they are the connected pixels (by 8 neighbours) themselves, so that a hole is no box; and a rectangle grows by its distance on
//! each side, which is the smallest rectangle around Clipper's rounded one.

use super::min_area_rectangle::{Rectangle, min_area_rectangle};

/// Corners as `[x, y]`, from the upper left one to the right around.
pub(super) type Quadrilateral = [[f32; 2]; 4];

/// Pixels above are text.
const THRESHOLD: f32 = 0.3;
/// Mean probability of a box, at least.
const BOX_THRESHOLD: f64 = 0.6;
/// A box grows by this times its area over its perimeter.
const UNCLIP_RATIO: f64 = 1.5;
const MAX_BOXES: usize = 1000;
/// Shorter side of a box in pixels of the map, at least; of one that has grown, 2 more.
const MIN_SIDE: f64 = 3.0;
/// Lines whose upper left corners differ by less, in pixels of the picture, are beside one another.
const SAME_ROW: f32 = 10.0;

/// Boxes in a map `[height, width]` of probabilities, in its pixels.
pub(super) fn of_map(map: &[f32], width: usize) -> Vec<[[f64; 2]; 4]> {
    let mut found = Vec::new();
    for pixels in connected(map, width).into_iter().take(MAX_BOXES) {
        let rectangle = min_area_rectangle(&pixels);
        if rectangle.shorter_side() < MIN_SIDE || mean_within(map, width, &rectangle) < BOX_THRESHOLD {
            continue;
        }
        let grown = rectangle.grown(rectangle.area() * UNCLIP_RATIO / rectangle.perimeter());
        if grown.shorter_side() >= MIN_SIDE + 2.0 {
            found.push(grown.corners());
        }
    }
    found
}

/// The pixels `[x, y]` of each connected region, regions in the order of their first pixel.
fn connected(map: &[f32], width: usize) -> Vec<Vec<[i64; 2]>> {
    let height = map.len() / width;
    let mut is_open: Vec<bool> = map.iter().map(|&value| value > THRESHOLD).collect();
    let mut regions = Vec::new();
    for first in 0..map.len() {
        if !is_open[first] {
            continue;
        }
        is_open[first] = false;
        let mut pixels = Vec::new();
        let mut to_visit = vec![first];
        while let Some(index) = to_visit.pop() {
            let (x, y) = (index % width, index / width);
            pixels.push([x as i64, y as i64]);
            for near_y in y.saturating_sub(1)..(y + 2).min(height) {
                for near_x in x.saturating_sub(1)..(x + 2).min(width) {
                    let near = near_y * width + near_x;
                    if is_open[near] {
                        is_open[near] = false;
                        to_visit.push(near);
                    }
                }
            }
        }
        regions.push(pixels);
    }
    regions
}

/// The mean of the map inside a rectangle with its corners rounded down, its edges included.
fn mean_within(map: &[f32], width: usize, rectangle: &Rectangle) -> f64 {
    let height = map.len() / width;
    let corners = rectangle.corners();
    let extent = |axis: usize, length: usize| {
        let of_axis = corners.map(|corner| corner[axis]);
        let last = (length - 1) as f64;
        let low = of_axis
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min)
            .floor()
            .clamp(0.0, last);
        let high = of_axis
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
            .ceil()
            .clamp(0.0, last);
        (low, high)
    };
    let ((left, right), (top, bottom)) = (extent(0, width), extent(1, height));
    let polygon = corners.map(|[x, y]| [(x - left).trunc() + left, (y - top).trunc() + top]);
    let (mut sum, mut count) = (0.0, 0_usize);
    for y in top as usize..=bottom as usize {
        for x in left as usize..=right as usize {
            if is_within(&polygon, [x as f64, y as f64]) {
                sum += f64::from(map[y * width + x]);
                count += 1;
            }
        }
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Whether a pixel lies in a convex polygon, or nearer than half a pixel to an edge, which OpenCV's `fillPoly` draws as well.
fn is_within(polygon: &[[f64; 2]; 4], [x, y]: [f64; 2]) -> bool {
    let distances = (0..4).map(|index| {
        let ([from_x, from_y], [to_x, to_y]) = (polygon[index], polygon[(index + 1) % 4]);
        let (edge_x, edge_y) = (to_x - from_x, to_y - from_y);
        let length = edge_x.hypot(edge_y);
        if length == 0.0 {
            return f64::INFINITY;
        }
        (edge_x * (y - from_y) - edge_y * (x - from_x)) / length
    });
    distances.fold(f64::INFINITY, f64::min) > -0.5
}

/// A box of the map as one of the picture, whose pixels are `scale` times smaller; `None` if it is 3 pixels or less in height or width.
pub(super) fn placed(corners: &[[f64; 2]; 4], scale: [f64; 2], size: [usize; 2]) -> Option<Quadrilateral> {
    let in_picture = corners.map(|corner| {
        [0, 1].map(|axis| {
            let place = (corner[axis] * scale[axis]).round_ties_even();
            place.clamp(0.0, (size[axis] - 1) as f64) as f32
        })
    });
    let corners = clockwise(in_picture);
    let length = |a: [f32; 2], b: [f32; 2]| (a[0] - b[0]).hypot(a[1] - b[1]).floor();
    let is_large = length(corners[0], corners[1]) > 3.0 && length(corners[0], corners[3]) > 3.0;
    is_large.then_some(corners)
}

/// The two left corners by height, then the two right ones.
fn clockwise(mut corners: Quadrilateral) -> Quadrilateral {
    corners.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [mut left, mut right] = [[corners[0], corners[1]], [corners[2], corners[3]]];
    left.sort_by(|a, b| a[1].total_cmp(&b[1]));
    right.sort_by(|a, b| a[1].total_cmp(&b[1]));
    [left[0], right[0], right[1], left[1]]
}

/// From top to bottom, and from left to right in a row.
pub(super) fn in_reading_order(mut boxes: Vec<Quadrilateral>) -> Vec<Quadrilateral> {
    boxes.sort_by(|a, b| a[0][1].total_cmp(&b[0][1]).then(a[0][0].total_cmp(&b[0][0])));
    for last in 1..boxes.len() {
        for place in (1..=last).rev() {
            let (before, this) = (boxes[place - 1][0], boxes[place][0]);
            if (this[1] - before[1]).abs() >= SAME_ROW || this[0] >= before[0] {
                break;
            }
            boxes.swap(place - 1, place);
        }
    }
    boxes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(x: f32, y: f32) -> Quadrilateral {
        [[x, y], [x + 20.0, y], [x + 20.0, y + 8.0], [x, y + 8.0]]
    }

    #[test]
    fn boxes_are_read_row_by_row_though_a_row_is_not_quite_level() {
        let boxes = vec![
            at(200.0, 11.0),
            at(5.0, 60.0),
            at(10.0, 15.0),
            at(100.0, 7.0),
            at(90.0, 52.0),
        ];
        let starts: Vec<f32> = in_reading_order(boxes).iter().map(|found| found[0][0]).collect();
        assert_eq!(starts, [10.0, 100.0, 200.0, 5.0, 90.0]);
    }

    #[test]
    fn a_map_without_text_has_no_box_and_a_weak_region_is_none() {
        assert!(of_map(&[0.1; 64 * 32], 64).is_empty());
        // 16×8 pixels with a probability below that of a box, a line that is too thin, and a solid block.
        let mut map = vec![0.0; 64 * 64];
        let mut fill = |x: std::ops::Range<usize>, y: std::ops::Range<usize>, value: f32| {
            for row in y {
                for column in x.clone() {
                    map[row * 64 + column] = value;
                }
            }
        };
        fill(2..18, 2..10, 0.5);
        fill(2..40, 20..22, 1.0);
        fill(10..41, 40..49, 0.9);
        let found = of_map(&map, 64);
        // Pixel centres from 10 to 40 and 40 to 48, grown by 30 * 8 * 1.5 / 76.
        let grown = 30.0 * 8.0 * 1.5 / 76.0;
        assert_eq!(found.len(), 1);
        let extremes = |axis: usize| {
            let of_axis = found[0].map(|corner| corner[axis]);
            of_axis
                .iter()
                .fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)))
        };
        for (found, wanted) in [(extremes(0), (10.0, 40.0)), (extremes(1), (40.0, 48.0))] {
            assert!((found.0 - (wanted.0 - grown)).abs() < 1e-9, "{found:?}");
            assert!((found.1 - (wanted.1 + grown)).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn boxes_are_those_of_opencv_and_clipper() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let picture = image::open(folder.join("map.png")).unwrap().to_luma8();
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let map: Vec<f32> = picture
            .as_raw()
            .iter()
            .map(|&byte| f32::from(byte) / 255.0)
            .collect();
        let size = [301, 199];
        let scale = [301.0 / width as f64, 199.0 / height as f64];
        let found = of_map(&map, width);
        let found = found.iter().filter_map(|corners| placed(corners, scale, size));
        let found = in_reading_order(found.collect());
        let wanted = std::fs::read_to_string(folder.join("boxes.json")).unwrap();
        let wanted: Vec<Quadrilateral> = serde_json::from_str(&wanted).unwrap();
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (found, wanted) in found.iter().zip(&wanted) {
            let distances = found
                .iter()
                .zip(wanted)
                .flat_map(|(a, b)| [(a[0] - b[0]).abs(), (a[1] - b[1]).abs()]);
            // Clipper rounds corners to whole pixels of the map, 1.35 of these, before it puts a rectangle around them.
            assert!(distances.fold(0.0, f32::max) <= 2.0, "{found:?}, not {wanted:?}");
        }
    }
}
